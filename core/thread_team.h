// A team of threads that share a piece of work: the threads are created once and stay; work is taken, and handed on, in
// a fixed order.
//
//   items     |0|1|2|3|4|5|6|7|8| …      taken in order by any free thread: work(worker, item)
//   finished  |0|1|2|                    finish(item), one at a time, in order, by the thread that did the missing item
//   window          |3|4|5|6|7|8|        taken at most; so what waits for its turn is bounded
//
// Ordered sums and sends happen in `finish`, so that nothing depends on the number of threads. The caller's thread is
// one of the team: in a team of one, everything happens on it, item by item.
//
// `work` runs concurrently for different items; `worker` is below threads() and unique among concurrent calls. `finish`
// runs on any of the threads, without a lock, and sees the writes of `work` for its item and all earlier ones.
// RunInOrder is for one caller at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "core/mutex.h"
#include "core/thread.h"

namespace causeway::core {

class ThreadTeam {
 public:
  using Work = std::function<void(int worker, int64_t item)>;
  using Finish = std::function<void(int64_t item)>;

  explicit ThreadTeam(int threads);  // at least 1
  ~ThreadTeam();

  int threads() const { return static_cast<int>(others_.size()) + 1; }
  // The maximum number of items from the first unfinished one to the last one taken; so item mod window() is a slot
  // that only this item uses from its `work` to its `finish`.
  int64_t window() const { return static_cast<int64_t>(worked_.size()); }

  // Items 0 … count − 1; returns when all are finished.
  void RunInOrder(int64_t count, const Work& work, const Finish& finish);

 private:
  struct Job {
    int64_t count = 0;
    const Work* work = nullptr;
    const Finish* finish = nullptr;
  };

  void Serve(int worker);
  void TakePart(int worker, const Job& job);
  bool Take(const Job& job, int64_t* item);
  void FinishFrom(const Job& job, int64_t item);

  Mutex mutex_;
  Condition begun_, changed_;
  Job job_ ABSL_GUARDED_BY(mutex_);
  int64_t jobs_ ABSL_GUARDED_BY(mutex_) = 0;   // jobs begun so far
  bool open_ ABSL_GUARDED_BY(mutex_) = false;  // the last job is open
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  int busy_ ABSL_GUARDED_BY(mutex_) = 0;  // number of other threads at work
  int64_t taken_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t finished_ ABSL_GUARDED_BY(mutex_) = 0;
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;  // a thread is in `finish`
  std::vector<char> worked_;  // by item mod window: `work` is done; under mutex_, except for its size
  std::vector<Thread> others_;
};

// Passes over the values of one array: calls work(first, count) for every piece of 0 … values − 1, concurrently and in
// any order. A piece is 65,536 values, 1.8 MB of AdamW's traffic: far more than taking it costs.
inline void OnAllThreads(ThreadTeam& team, int64_t values, absl::FunctionRef<void(int64_t first, int64_t count)> work) {
  constexpr int64_t kPiece = int64_t{1} << 16;
  team.RunInOrder((values + kPiece - 1) / kPiece,
                  [&](int, int64_t piece) { work(piece * kPiece, std::min(kPiece, values - piece * kPiece)); },
                  [](int64_t) {});
}

}  // namespace causeway::core
