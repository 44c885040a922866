// The model of a run in this life of the coordinator: the fact of it, its part of a welcome, and its parameters, which
// begin anew with each generation.
//
//   Declare, Follow ─► ModelFact ─ Begin ─► welcome(), Parameters (merge thread) ─► Update, Anchor
//
// One owner at a time, but for `parameters()`, whose object is thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "causeway/v1/coordinator.pb.h"
#include "codecs/chunk_plan.h"
#include "core/run_settings.h"
#include "server/rounds/codec_choice.h"
#include "server/rounds/model_fact.h"
#include "server/run/parameters.h"
#include "server/run/ready.h"
#include "server/store/journal.h"

namespace causeway::server {

// The codecs of a run's rounds: as its settings say, or where they let the coordinator choose (`codec.up: auto`).
//
//   round v → v + 1 is decided ─► down: of its update; next_up: of contributions to v + 1 ─► journal, DownloadHeader
//
// The up codec of a version is fixed with the decision that makes the version, so that all contributions of a round
// have the same one, and a site learns it with the update or the anchor of that version. Version 0 has the cheapest.
// Not thread-safe.
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

// The generation of the model that a message names, if it does.
template <typename Message>
std::optional<uint64_t> GenerationOf(const Message& message) {
  return message.has_generation() ? std::optional(message.generation()) : std::nullopt;
}

class RunModel {
 public:
  struct Listeners {  // on the merge thread
    std::function<void(const MergedRound&)> merged;
    std::function<void(const absl::Status&)> failed;
  };
  // `settings` and `journal` outlive it.
  RunModel(const core::RunSettings& settings, Journal* journal, Listeners listeners)
      : settings_(settings), journal_(*journal), listeners_(std::move(listeners)) {}

  ModelFact& fact() { return fact_; }
  const ModelFact& fact() const { return fact_; }
  const v1::Welcome& welcome() const { return welcome_; }                        // the fields that describe the model
  const std::shared_ptr<Parameters>& parameters() const { return parameters_; }  // null before there is a model
  void Describe(v1::RunDescription& description) const;                          // adds the model, if there is one

  // The joiner's model replaces one that no site in the run has any more. True if it is another one: call Begin then.
  bool Declare(const core::FragmentMap& map, const core::SiteId& site, Ready& ready);
  void Store(Ready& ready) const;
  void Restore(ModelFact fact) { fact_ = std::move(fact); }
  void Begin(Ready& ready);  // the model is what fact() says from now on
  void End() { parameters_.reset(); }

  // INVALID_ARGUMENT: no such fragment; ABORTED: another generation; NOT_FOUND: the update was dropped.
  absl::Status BeginDownload(const v1::DownloadRequest& request, Waiter waiter, Download& download) const;

  // Merges the rounds again that were decided after the snapshots.
  void MergeAgain(const std::vector<StoredFragment>& fragments, const RunCodecs& codecs);
  // DATA_LOSS names the segment and the site.
  absl::StatusOr<Contributions> ReadContributions(const core::Fragment& fragment, const codecs::LegCodec& leg,
                                                  const std::vector<StoredContribution>& stored) const;

 private:
  const core::RunSettings& settings_;
  Journal& journal_;
  const Listeners listeners_;
  ModelFact fact_;
  v1::Welcome welcome_;
  const std::shared_ptr<Waiters> waiters_ = std::make_shared<Waiters>();
  std::shared_ptr<Parameters> parameters_;
};

}  // namespace causeway::server
