// The codecs of a run's rounds, where its config lets the coordinator choose (`codec.up: auto`).
//
//   round v → v + 1 is decided ─► down: of its update; next_up: of contributions to v + 1 ─► journal, DownloadHeader
//
// The up codec of a version is fixed with the decision that makes it, so that all contributions of a round have one,
// and a site learns it with the update or the anchor that brings it the version. Version 0 has the cheapest. Not
// thread-safe.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "codecs/chunk_plan.h"
#include "core/run_config.h"
#include "server/rounds/codec_choice.h"
#include "server/store/records.h"

namespace causeway::server {

class RunCodecs {
 public:
  explicit RunCodecs(const core::RunConfig& config) : config_(config) {}

  void SetMap(const core::FragmentMap& map);
  // Of contributions to the version that the fragment has, as an earlier life decided; none: as the config says.
  void Restore(core::FragmentId fragment, std::optional<core::CodecId> up);

  void Heard(const core::SiteId& site, const core::Progress& progress) { speeds_.Heard(site, progress); }

  // How contributions to the fragment's version are encoded, and those of a round.
  codecs::LegCodec UpLeg(core::FragmentId fragment) const { return codecs::UpLeg(config_).With(up_[fragment]); }
  codecs::LegCodec UpLeg(const RoundRecord& round) const;

  // A round of the fragment is decided. None without a choice.
  std::optional<RoundCodecs> Decide(core::FragmentId fragment, const std::vector<core::SiteId>& active);
  // What has changed with the last decision, in words: "up: …".
  std::vector<std::string> TakeChanges() { return std::exchange(changes_, {}); }

  std::set<core::CodecId> all() const;  // that a site must know
  // As it is now, and why; an empty reason: the config says so.
  core::CodecId up() const { return choose_up_ ? choose_up_->codec() : config_.codec.up; }
  core::CodecId down() const { return choose_down_ ? choose_down_->codec() : config_.codec.down; }
  std::string reason_up() const { return choose_up_ ? choose_up_->reason() : ""; }
  std::string reason_down() const { return choose_down_ ? choose_down_->reason() : ""; }

 private:
  const core::RunConfig config_;
  SiteSpeeds speeds_;
  std::optional<CodecChoice> choose_up_, choose_down_;
  std::vector<core::CodecId> up_;  // of each fragment's version
  std::vector<std::string> changes_;
};

}  // namespace causeway::server
