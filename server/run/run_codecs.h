// The codecs of a run's rounds: as its settings say, or where they let the coordinator choose (`codec.up: auto`).
//
//   round v → v + 1 is decided ─► down: of its update; next_up: of contributions to v + 1 ─► journal, DownloadHeader
//
// The up codec of a version is fixed with the decision that makes the version, so that all contributions of a round
// have the same one, and a site learns it with the update or the anchor of that version. Version 0 has the cheapest.
// Not thread-safe.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "codecs/chunk_plan.h"
#include "core/run_settings.h"
#include "server/rounds/codec_choice.h"
#include "server/store/records.h"

namespace causeway::server {

class RunCodecs {
 public:
  explicit RunCodecs(const core::RunSettings& settings) : settings_(settings), config_(settings.first()) {}

  void SetMap(const core::FragmentMap& map);
  // Restores the codec of contributions to the fragment's version, as an earlier life decided; none: as the settings
  // say.
  void Restore(core::FragmentId fragment, core::Version version, std::optional<core::CodecId> up);

  void Heard(const core::SiteId& site, const core::Progress& progress) { speeds_.Heard(site, progress); }

  // The encoding of contributions to the fragment's version, and to a round.
  codecs::LegCodec UpLeg(core::FragmentId fragment) const { return codecs::UpLeg(config_).With(up_[fragment]); }
  codecs::LegCodec UpLeg(const RoundRecord& round) const;

  // Decides the codecs of the fragment's round of base version `base`, with that number of contributions. None if there
  // is no choice, and the settings have not changed.
  std::optional<RoundCodecs> Decide(core::FragmentId fragment, core::Version base,
                                    const std::vector<core::SiteId>& active, int64_t contributions);
  // The changes made by the last decision, in words: "up: …".
  std::vector<std::string> TakeChanges() { return std::exchange(changes_, {}); }

  std::set<core::CodecId> all() const;  // the codecs that a site must support
  // The current codec and its reason; empty: the config sets it.
  core::CodecId up() const { return choose_up_ ? choose_up_->codec() : settings_.newest().codec.up; }
  core::CodecId down() const;
  std::string reason_up() const { return choose_up_ ? choose_up_->reason() : ""; }
  std::string reason_down() const { return choose_down_ ? choose_down_->reason() : sparse_reason_; }

 private:
  const core::RunSettings& settings_;
  const core::RunConfig& config_;  // for settings that cannot change: exempt kinds, the seed, the choice
  SiteSpeeds speeds_;
  std::optional<CodecChoice> choose_up_, choose_down_;
  std::vector<core::CodecId> up_;             // for contributions to each fragment's version
  std::optional<core::CodecId> sparse_down_;  // the last round's, if it was a sparse codec
  std::string sparse_reason_;
  std::vector<std::string> changes_;
};

}  // namespace causeway::server
