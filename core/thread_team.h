// Cores that share a piece of work: threads that are made once and stay, and the order in which they take work and hand
// it on.
//
//   items     |0|1|2|3|4|5|6|7|8| …      taken in order by whoever is free: work(worker, item)
//   finished  |0|1|2|                    one at a time, in order, by whoever worked the one that was missing:
//   finish(item) window          |3|4|5|6|7|8|        taken at most; so what waits for its turn is bounded
//
// What is summed or sent in order is summed or sent in `finish`, so that nothing depends on the number of threads. The
// caller's thread is one of them: with one, everything happens on it, item by item.
//
// `work` of different items runs at once, `worker` is below threads() and nobody else's meanwhile. `finish` runs on any
// of the threads, without a lock, and sees what `work` of its item and all before wrote. RunInOrder is for one caller
// at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/mutex.h"
#include "core/thread.h"

namespace causeway::core {

class ThreadTeam {
 public:
  using Work = std::function<void(int worker, int64_t item)>;
  using Finish = std::function<void(int64_t item)>;

  explicit ThreadTeam(int threads);  // at least 1
  ~ThreadTeam();

  static int AllCores();  // what this process may use

  int threads() const { return static_cast<int>(others_.size()) + 1; }
  // Items between the first that is not finished and the last that is taken, at most; so item mod window() is a place
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
  int64_t jobs_ ABSL_GUARDED_BY(mutex_) = 0;   // begun so far
  bool open_ ABSL_GUARDED_BY(mutex_) = false;  // the last of them
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  int busy_ ABSL_GUARDED_BY(mutex_) = 0;  // of the others
  int64_t taken_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t finished_ ABSL_GUARDED_BY(mutex_) = 0;
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;  // somebody is
  std::vector<char> worked_;                        // by item mod window; under mutex_, but for its size
  std::vector<Thread> others_;
};

}  // namespace causeway::core
