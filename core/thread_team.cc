#include "core/thread_team.h"

#include "core/check.h"

namespace causeway::core {
namespace {

// Enough that a thread that loses its core for a moment does not delay the others at once.
constexpr int64_t kItemsAheadPerThread = 8;

}  // namespace

ThreadTeam::ThreadTeam(int threads) : worked_(kItemsAheadPerThread * threads, 0) {
  CHECK(threads >= 1);
  for (int worker = 1; worker < threads; ++worker) others_.emplace_back([this, worker] { Serve(worker); });
}

ThreadTeam::~ThreadTeam() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    begun_.NotifyAll();
  }
  for (Thread& other : others_) other.Join();
}

void ThreadTeam::Serve(int worker) {
  int64_t seen = 0;
  while (true) {
    Job job;
    {
      MutexLock lock(mutex_);
      lock.Wait(begun_, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || (open_ && jobs_ != seen); });
      if (stopping_) return;
      seen = jobs_;
      job = job_;
      ++busy_;
    }
    TakePart(worker, job);
    MutexLock lock(mutex_);
    --busy_;
    changed_.NotifyAll();
  }
}

void ThreadTeam::RunInOrder(int64_t count, const Work& work, const Finish& finish) {
  const Job job = {.count = count, .work = &work, .finish = &finish};
  {
    MutexLock lock(mutex_);
    CHECK(!open_);
    open_ = true;
    job_ = job;
    taken_ = finished_ = 0;
    ++jobs_;
    if (count > 1) begun_.NotifyAll();
  }
  TakePart(0, job);
  MutexLock lock(mutex_);
  lock.Wait(changed_, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return finished_ == count && busy_ == 0; });
  open_ = false;
}

void ThreadTeam::TakePart(int worker, const Job& job) {
  int64_t item;
  while (Take(job, &item)) {
    (*job.work)(worker, item);
    FinishFrom(job, item);
  }
}

bool ThreadTeam::Take(const Job& job, int64_t* item) {
  MutexLock lock(mutex_);
  lock.Wait(changed_, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return taken_ == job.count || taken_ < finished_ + window();
  });
  if (taken_ == job.count) return false;
  *item = taken_++;
  return true;
}

void ThreadTeam::FinishFrom(const Job& job, int64_t item) {
  {
    MutexLock lock(mutex_);
    worked_[item % window()] = 1;
    if (finishing_) return;  // the finishing thread looks for the next item before it stops
    finishing_ = true;
  }
  while (true) {
    int64_t next;
    {
      MutexLock lock(mutex_);
      next = finished_;
      if (worked_[next % window()] == 0) {
        finishing_ = false;
        return;
      }
      worked_[next % window()] = 0;
    }
    (*job.finish)(next);
    MutexLock lock(mutex_);
    ++finished_;
    changed_.NotifyAll();
  }
}

}  // namespace causeway::core
