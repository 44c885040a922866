// Queues on the host whose work runs in any order that events allow.
//
//   kStepped   one thread: between two calls of the host some of what may run runs, which and how much by the seed
//   kThreads   a thread for each queue, with random delays; nothing is ordered but by events, as on a real device
//
// Each queue is for one thread at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "core/check.h"
#include "core/clock.h"
#include "core/mutex.h"
#include "core/random.h"
#include "offload/device.h"

namespace causeway::offload {

class FakeQueues {
 public:
  enum class Runs { kStepped, kThreads };

  FakeQueues(Runs runs, uint64_t seed) : runs_(runs), seed_(seed) {
    if (runs == Runs::kStepped) return;
    for (Line& line : lines_) line.thread = std::thread([this, &line] { Serve(line); });
  }
  ~FakeQueues() {
    for (Line& line : lines_) {
      if (!line.thread.joinable()) continue;
      Push(line, {});
      line.thread.join();
    }
  }

  void Launch(Queue queue, std::function<void()> work) { Add(queue, {.work = std::move(work)}); }

  Device::Event MakeEvent() {
    const core::MutexLock lock(mutex_);
    events_.emplace_back();
    return static_cast<Device::Event>(events_.size()) - 1;
  }
  void Record(Device::Event event, Queue queue) {
    EventState& state = StateOf(event);
    const int64_t record = ++state.recorded;
    Add(queue, {.work = [&state, record] {
          state.when = core::SystemClock().Now();
          state.come.store(record, std::memory_order_release);
          state.come.notify_all();
        }});
  }
  void Await(Queue queue, Device::Event event) {
    EventState& state = StateOf(event);
    Add(queue, {.event = &state, .record = state.recorded});
  }
  void AwaitOnHost(Device::Event event) {
    EventState& state = StateOf(event);
    if (runs_ == Runs::kThreads) {
      AwaitRecord(state, state.recorded);
      return;
    }
    const core::MutexLock lock(mutex_);
    while (!HasCome(state, state.recorded)) CHECK(StepOne());  // otherwise queues wait for each other in a circle
  }

  // Both have been awaited on the host.
  double SecondsBetween(Device::Event first, Device::Event last) {
    return std::chrono::duration<double>(StateOf(last).when - StateOf(first).when).count();
  }

 private:
  struct EventState {
    std::atomic<int64_t> recorded = 0;  // the host's
    std::atomic<int64_t> come = 0;
    core::Clock::TimePoint when;  // it came; read after `come`
  };
  EventState& StateOf(Device::Event event) {
    const core::MutexLock lock(mutex_);
    return events_[event];
  }
  struct Op {
    std::function<void()> work;
    EventState* event = nullptr;  // to wait for, instead of work
    int64_t record = 0;
  };
  // One writer, one reader; a reader never signals the writer, so that only events order what the host sees.
  struct Node {
    Op op;
    std::atomic<Node*> next = nullptr;
  };
  struct Line {
    std::deque<Op> ops;                 // stepped
    Node* last = new Node;              // threads: the host's
    std::unique_ptr<Node> first{last};  // the thread's
    std::thread thread;
    ~Line() {
      for (Node* node = first.release(); node != nullptr;) {
        Node* next = node->next.load();
        delete node;
        node = next;
      }
    }
  };

  static bool HasCome(const EventState& state, int64_t record) {
    return state.come.load(std::memory_order_acquire) >= record;
  }
  static void AwaitRecord(const EventState& state, int64_t record) {
    for (int64_t come; (come = state.come.load(std::memory_order_acquire)) < record;) state.come.wait(come);
  }

  uint64_t Random(uint64_t below) { return core::HashCombine(seed_, draws_++) % below; }

  void Add(Queue queue, Op op) {
    Line& line = lines_[static_cast<int>(queue)];
    if (runs_ == Runs::kThreads) {
      Push(line, std::move(op));
      return;
    }
    const core::MutexLock lock(mutex_);
    line.ops.push_back(std::move(op));
    // By the seed: nothing runs before the host waits, everything does at once, or some.
    const uint64_t eagerness = seed_ % 4;
    for (uint64_t steps = eagerness == 0 ? 0 : eagerness == 1 ? 1000 : Random(6); steps > 0 && StepOne(); --steps)
      continue;
  }

  // Runs the front of one queue that may run, and of one queue only if no other may; false if there is none. By the
  // seed, so that for some seeds none is so late.
  bool StepOne() {
    const auto start = static_cast<int>(Random(kNumQueues)), late = static_cast<int>(seed_ / 4 % (kNumQueues + 2));
    for (int i = 0; i <= kNumQueues; ++i) {
      const int line = i == kNumQueues ? late : (start + i) % kNumQueues;
      if (line >= kNumQueues || (line == late && i < kNumQueues)) continue;
      std::deque<Op>& ops = lines_[line].ops;
      if (ops.empty() || (ops.front().event != nullptr && !HasCome(*ops.front().event, ops.front().record))) continue;
      const Op op = std::move(ops.front());
      ops.pop_front();
      if (op.work) op.work();
      return true;
    }
    return false;
  }

  static void Push(Line& line, Op op) {
    Node* node = new Node{.op = std::move(op)};
    Node* last = std::exchange(line.last, node);
    last->next.store(node, std::memory_order_release);
    last->next.notify_one();
  }

  void Serve(Line& line) {
    uint64_t delays = core::HashCombine(seed_, static_cast<uint64_t>(&line - lines_));
    while (true) {
      line.first->next.wait(nullptr, std::memory_order_acquire);
      line.first.reset(line.first->next.load(std::memory_order_acquire));
      const Op op = std::move(line.first->op);
      if (op.event != nullptr) {
        AwaitRecord(*op.event, op.record);
      } else if (op.work) {
        delays = core::SplitMix64(delays);
        // Spins, because a thread that yields waits for everything else on a busy machine.
        for (std::atomic<uint64_t> i = delays % 8 == 0 ? delays / 8 % 1024 : 0; i > 0; --i) continue;
        op.work();
      } else {
        return;
      }
    }
  }

  const Runs runs_;
  const uint64_t seed_;
  core::Mutex mutex_;  // stepped: all; threads: events_
  uint64_t draws_ = 0;
  Line lines_[kNumQueues];
  std::deque<EventState> events_;  // addresses stay
};

}  // namespace causeway::offload
