// A device's stream on the host: the C interface by which fake_nccl.cc queues its work, and hooks that implement it.
//
//   fake ncclAllReduce ──enqueue──► queue ──thread──► work(argument), one after the other
//   Record() = 7 ─────────────────► the 7th mark       Done(7): the thread has come past it
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "core/mutex.h"
#include "core/thread.h"
#include "worker/ranks/stream_hooks.h"

struct FakeStream {
  void (*enqueue)(void* self, void (*work)(void*), void* argument);
  void* self;
};

namespace causeway::worker {

class FakeStreamHooks final : public StreamHooks {
 public:
  FakeStreamHooks() : thread_([this] { Serve(); }) {}
  ~FakeStreamHooks() override {
    Push(nullptr);
    thread_.Join();
  }

  void* stream() const override { return const_cast<FakeStream*>(&stream_); }
  absl::Status Use() override { return absl::OkStatus(); }
  absl::StatusOr<int64_t> Record() override {
    core::MutexLock lock(mutex_);
    const int64_t event = ++recorded_;
    queue_.push_back([this, event] {
      core::MutexLock inner(mutex_);
      come_ = event;
    });
    changed_.NotifyAll();
    return event;
  }
  absl::StatusOr<bool> Done(int64_t event) override {
    core::MutexLock lock(mutex_);
    return come_ >= event;
  }
  absl::StatusOr<void*> Allocate(size_t bytes) override {
    core::MutexLock lock(mutex_);
    return memory_.emplace_back(std::make_unique<char[]>(bytes)).get();
  }
  absl::StatusOr<std::shared_ptr<StreamHooks>> Another() override { return std::make_shared<FakeStreamHooks>(); }

 private:
  void Push(std::function<void()> work) {
    core::MutexLock lock(mutex_);
    queue_.push_back(std::move(work));
    changed_.NotifyAll();
  }

  void Serve() {
    while (true) {
      std::function<void()> work;
      {
        core::MutexLock lock(mutex_);
        lock.Wait(changed_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !queue_.empty(); });
        work = std::move(queue_.front());
        queue_.pop_front();
      }
      if (work == nullptr) return;
      work();
    }
  }

  FakeStream stream_ = {.enqueue =
                            [](void* self, void (*work)(void*), void* argument) {
                              static_cast<FakeStreamHooks*>(self)->Push([work, argument] { work(argument); });
                            },
                        .self = this};
  core::Mutex mutex_;
  core::Condition changed_;
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mutex_);  // an empty one ends the thread
  std::vector<std::unique_ptr<char[]>> memory_ ABSL_GUARDED_BY(mutex_);
  int64_t recorded_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t come_ ABSL_GUARDED_BY(mutex_) = 0;
  core::Thread thread_;  // last: it calls us
};

}  // namespace causeway::worker
