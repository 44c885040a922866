// The model of a run in this life of the coordinator: the fact of it, its part of a welcome, and its parameters, which
// begin anew with each generation.
//
//   Declare, Follow ─► ModelFact ─ Begin ─► welcome(), Parameters (merge thread) ─► Update, Anchor
//
// One owner at a time, but for `parameters()`, whose object is thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "causeway/v1/coordinator.pb.h"
#include "core/run_settings.h"
#include "server/rounds/model_fact.h"
#include "server/run/parameters.h"
#include "server/run/ready.h"
#include "server/run/run_codecs.h"
#include "server/run/waiters.h"
#include "server/store/journal.h"

namespace causeway::server {

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

  struct Download {
    std::shared_ptr<ChunkSource> source;  // nullptr: `waiter` is answered when a retry makes sense
    uint64_t generation = 0;
  };
  absl::StatusOr<Download> BeginDownload(const v1::DownloadRequest& request, Waiter waiter);

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
