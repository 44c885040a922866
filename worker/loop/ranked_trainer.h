// The trainer of a site with several ranks: on rank 0, the leader, it represents all of them, so that the step loop and
// the site see one trainer; on the others, the followers, the same trainer carries out the leader's commands.
//
//   site ─► RankedStore: Move ──┬─► the leader's own θ
//                               └─► kMove, values ─► each follower's θ, by the same arithmetic ─► digests, compared
//   loop ─► RankedTrainer: Step ┬─► the leader's own step ◄──── all-reduce of gradients
//                               └─► kStep ─► each follower's ◄──┘
//
// Only the leader saves and evaluates; the ranks of a pipeline send it their state. Statuses are INTERNAL if a rank has
// failed, and name it. One owner thread. Source: docs/ranks.md.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "replica/parameter_store.h"
#include "worker/loop/rank_control.h"
#include "worker/loop/ranked_store.h"
#include "worker/parallel/trainer.h"

namespace causeway::worker {

class RankedTrainer final : public Trainer {
 public:
  // The arguments outlive it. `stop` is called when another rank was asked to stop.
  RankedTrainer(Trainer& own, RankControl& control, std::function<void()> stop)
      : own_(own), control_(control), stop_(std::move(stop)) {}

  // Before the first step: checks that every rank begins with the same θ and data.
  absl::Status CheckAlike();

  const core::Manifest& manifest() const override { return own_.manifest(); }
  replica::ParameterStore& store() override { return store_; }
  std::span<float> tensor(int i) override { return own_.tensor(i); }
  std::vector<Piece> pieces(int tensor) const override { return own_.pieces(tensor); }
  absl::Status initial_values() const override { return own_.initial_values(); }
  void Change(const core::RunConfig& config) override;
  void MoveSchedule(int64_t run_tokens) override;
  absl::StatusOr<StepResult> Step(core::Step t) override;
  InnerOptimizer* optimizer() const override { return own_.optimizer(); }
  core::RankProgress rank_progress() const override { return own_.rank_progress(); }
  core::SiteData data() const override { return own_.data(); }
  void SetSites(const std::vector<core::SiteId>& names) override;
  absl::StatusOr<formats::FileDigest> Save(const std::string& path) override;
  absl::Status Load(const std::string& path) override;  // on all ranks, from the leader's file
  std::unique_ptr<Evaluator> NewEvaluator() const override { return own_.NewEvaluator(); }

 private:
  Trainer& own_;
  RankControl& control_;
  const std::function<void()> stop_;
  RankedStore store_{own_, control_};
  std::optional<int64_t> run_tokens_;  // at which the schedule stands; nullopt: it counts steps
  absl::Status told_;                  // the status of Change and SetSites, which return none
};

// A follower's part in the run: returns when the leader ends it (OK), or something fails.
absl::Status FollowLeader(Trainer& trainer, RankControl& control);

}  // namespace causeway::worker
