// The leader's access to θ of a site with several ranks: moves and reads it wherever its tensors lie.
//
//   Move        kMove, ranges ─┬─► the leader's own tensors
//                              └─► values ─► each follower's, by the same arithmetic ─► digests, compared
//   BeginRead   kRead, ranges ───► first holders of pieces send, the leader receives during the next step ─► AwaitRead
//
// Where replicas are equal (data parallel), values are broadcast and only the leader reads; otherwise each rank
// receives and sends the pieces that it holds (Trainer::pieces). Statuses are INTERNAL if a rank has failed. One owner
// thread, except for AwaitRead.
#pragma once

#include <map>
#include <vector>

#include "absl/status/status.h"
#include "core/mutex.h"
#include "replica/parameter_store.h"
#include "worker/loop/rank_control.h"
#include "worker/parallel/trainer.h"

namespace causeway::worker {

class RankedStore final : public replica::ParameterStore {
 public:
  RankedStore(Trainer& own, RankControl& control) : own_(own), control_(control) {}

  core::DType dtype(int tensor) const override { return own_.store().dtype(tensor); }
  int64_t BeginRead(const replica::UnitRanges& ranges, std::span<float> staging) override;
  absl::Status AwaitRead(int64_t ticket) override;
  replica::ThetaEncoder* encoder() override;  // null where the ranks hold different pieces

 private:
  // The parts of a read: those from the leader's own store, and those that other ranks send.
  struct Read {
    absl::Status begun;
    std::vector<int64_t> own;
    Collectives::Ticket received = 0;  // the last receive; 0: none
  };

  absl::Status DoMove(const replica::UnitRanges& ranges, const replica::Movement& movement) override;
  absl::Status GiveValues(const replica::UnitRanges& ranges, const replica::Movement& movement);

  Trainer& own_;
  RankControl& control_;
  core::Mutex mutex_;
  std::map<int64_t, Read> reads_ ABSL_GUARDED_BY(mutex_);  // keyed by ticket, where the ranks hold different pieces
  int64_t tickets_ ABSL_GUARDED_BY(mutex_) = 0;
};

// A follower's part of a move, and of a read.
absl::Status FollowMove(const RankCommand& command, Trainer& trainer, RankControl& control);
absl::Status FollowRead(const RankCommand& command, Trainer& trainer, RankControl& control);

// To be called by every rank: checks that data is the same on all ranks, and parameters on those that hold the same
// tensors. INTERNAL names the first rank that differs.
absl::Status CheckStart(RankControl& control, Trainer& trainer);

}  // namespace causeway::worker
