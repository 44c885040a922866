// The ranks of a native site, from their rendezvous to the end of the run.
//
//   Open: rendezvous ─► Gloo ─┬─► control: what to do next (rank_control.h)
//                             └─► values: gradients (worker/ranks/rank_steps.h)
//
// With one rank there is nothing to open, and everything here works the same way. One owner thread, unless noted
// otherwise.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/mutex.h"
#include "worker/loop/rank_control.h"
#include "worker/ranks/rank_place.h"
#include "worker/ranks/rank_steps.h"

namespace causeway::worker {

struct SiteRanksOptions {
  RankPlace place;
  std::string identity;  // the same on all ranks
  RankKey key;
  double timeout_s = 600;
};

class SiteRanks {
 public:
  // Returns when all ranks are there. Statuses as those of Rendezvous and ConnectByGloo.
  static absl::StatusOr<std::unique_ptr<SiteRanks>> Open(const SiteRanksOptions& options);

  bool leads() const { return options_.place.rank == 0; }
  int world() const { return options_.place.world; }
  RankControl& control() { return *control_; }

  // The ranks as this rank's trainer needs them. `stop_requested` asks about this rank; called on any thread.
  TrainerRanks ForTrainer(std::function<bool()> stop_requested);

  // ---- The leader ----

  // From now on notifies followers that the leader is alive; `stop` is called if a follower is found to have failed.
  void StayAlive(std::function<void()> stop);
  // Ends the run for all ranks: `done`, or `why` not.
  void End(bool done, const std::string& why);
  absl::Status failure();  // OK, or the failure found by StayAlive. Any thread

 private:
  explicit SiteRanks(SiteRanksOptions options) : options_(std::move(options)) {}

  const SiteRanksOptions options_;
  int64_t hosts_ = 1;
  std::unique_ptr<Collectives> values_;
  core::Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<RankControl> control_;  // last: its thread calls us
};

}  // namespace causeway::worker
