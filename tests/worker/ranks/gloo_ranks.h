// Ranks over threads, and over Gloo in one process: a connection for each pair, as between processes.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/mutex.h"
#include "tests/worker/ranks/ranks_under_test.h"
#include "tests/worker/ranks/thread_wire.h"
#include "worker/ranks/gloo_wire.h"
#include "worker/ranks/ordered_collectives.h"

namespace causeway::worker {

inline std::vector<RankUnderTest> OverThreads(int world) {
  ThreadRanks ranks(world);
  std::vector<RankUnderTest> result(world);
  for (int rank = 0; rank < world; ++rank) {
    result[rank].collectives = std::make_unique<OrderedCollectives>(world == 1 ? nullptr : ranks.wire(rank));
  }
  return result;
}

// An all-gather of contacts between threads, as often as they like, which processes do by their rendezvous.
class ContactExchange {
 public:
  explicit ContactExchange(int world) : all_(world) {}

  std::vector<RankContact> operator()(int rank, const RankContact& mine) {
    core::MutexLock lock(mutex_);
    lock.Wait(changed_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return leaving_ == 0; });
    all_[rank] = mine;
    ++here_;
    changed_.NotifyAll();
    lock.Wait(changed_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return here_ == std::ssize(all_); });
    std::vector<RankContact> all = all_;
    leaving_ = leaving_ == 0 ? std::ssize(all_) - 1 : leaving_ - 1;
    if (leaving_ == 0) here_ = 0;
    changed_.NotifyAll();
    return all;
  }

 private:
  core::Mutex mutex_;
  core::Condition changed_;
  std::vector<RankContact> all_ ABSL_GUARDED_BY(mutex_);
  int64_t here_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t leaving_ ABSL_GUARDED_BY(mutex_) = 0;
};

inline std::vector<RankUnderTest> OverGloo(int world) {
  ContactExchange exchange(world);
  std::vector<RankUnderTest> result(world);
  const std::vector<absl::Status> made = OnRanks(world, [&](int rank) -> absl::Status {
    ASSIGN_OR_RETURN(std::shared_ptr<Wire> wire,
                     ConnectByGloo({.rank = rank, .world = world, .host = "here", .address = "127.0.0.1"},
                                   [&](const RankContact& mine) { return exchange(rank, mine); }));
    result[rank].collectives = std::make_unique<OrderedCollectives>(std::move(wire));
    return absl::OkStatus();
  });
  for (const absl::Status& status : made) CHECK(status.ok());
  return result;
}

}  // namespace causeway::worker
