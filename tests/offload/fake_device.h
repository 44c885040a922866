// A device emulated on the host, whose queues run in any order that events allow (FakeQueues): a wait that a
// schedule forgot shows as wrong values (device memory begins as NaN), and under ThreadSanitizer as a race.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/clock.h"
#include "core/mutex.h"
#include "core/random.h"
#include "offload/device.h"

namespace causeway::offload {

// Queues on the host whose work runs in any order that events allow.
//
//   kStepped   one thread: between two calls of the host some of what may run runs, which and how much by the seed
//   kThreads   a thread for each queue, with random delays; nothing is ordered but by events, as on a real device
//
// Each queue is for one thread at a time.
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

class FakeDevice : public Device {
 public:
  using Runs = FakeQueues::Runs;
  using Wait = std::pair<offload::Queue, Event>;

  FakeDevice(Runs runs, uint64_t seed) : queues_(runs, seed) {}

  // From here on these waits are omitted: a test that does not notice this does not test them. Waits of the host are
  // selected by event only.
  void Forget(const Wait& wait) { forgotten_.insert(wait); }
  void ForgetOnHost(Event event) { forgotten_on_host_.insert(event); }
  const std::set<Wait>& waits() const { return waits_; }
  const std::set<Event>& waits_on_host() const { return waits_on_host_; }

  // Sets the device's memory, which is otherwise unlimited.
  void SetMemory(int64_t bytes) { free_ = bytes; }

  // Anything else that runs on the device: backward, forward.
  void Launch(offload::Queue queue, std::function<void()> work) { queues_.Launch(queue, std::move(work)); }

  std::string name() const override { return "fake"; }
  absl::StatusOr<void*> Allocate(size_t bytes) override {
    const core::MutexLock lock(mutex_);
    if (static_cast<int64_t>(bytes) > free_) {
      return absl::ResourceExhaustedError(
          absl::StrCat(name(), " has no room for ", bytes, " bytes: ", free_, " are free"));
    }
    free_ -= static_cast<int64_t>(bytes);
    auto memory = std::make_unique<std::vector<char>>(bytes, '\xff');  // NaN
    void* data = memory->data();
    memory_[data] = std::move(memory);
    return data;
  }
  void Free(void* memory) override {
    const core::MutexLock lock(mutex_);
    const auto found = memory_.find(memory);
    if (found == memory_.end()) return;
    free_ += std::ssize(*found->second);
    memory_.erase(found);
  }
  int64_t free_bytes() override { return free_; }
  absl::Status Pin(void* host, size_t) override {
    const core::MutexLock lock(mutex_);
    CHECK(pinned_.insert(host).second);
    return absl::OkStatus();
  }
  void Unpin(void* host) override {
    const core::MutexLock lock(mutex_);
    CHECK(pinned_.erase(host) == 1);
  }
  size_t allocations() const { return memory_.size(); }
  size_t pinned() const { return pinned_.size(); }

  void CopyToDevice(offload::Queue queue, void* device, const void* host, size_t bytes) override {
    Launch(queue, [=] { std::memcpy(device, host, bytes); });
  }
  void CopyToHost(offload::Queue queue, void* host, const void* device, size_t bytes) override {
    Launch(queue, [=] { std::memcpy(host, device, bytes); });
  }
  void AdamW(offload::Queue queue, const AdamWConstants& constants, const AdamWArrays& arrays) override {
    Launch(queue, [=] { AdamWStep(constants, arrays); });
  }

  Event MakeEvent() override { return queues_.MakeEvent(); }
  void Record(Event event, offload::Queue queue) override { queues_.Record(event, queue); }
  void Await(offload::Queue queue, Event event) override {
    {
      const core::MutexLock lock(mutex_);
      waits_.insert({queue, event});
    }
    if (!forgotten_.contains({queue, event})) queues_.Await(queue, event);
  }
  void AwaitOnHost(Event event) override {
    {
      const core::MutexLock lock(mutex_);
      waits_on_host_.insert(event);
    }
    if (!forgotten_on_host_.contains(event)) queues_.AwaitOnHost(event);
  }

  double SecondsBetween(Event first, Event last) override { return queues_.SecondsBetween(first, last); }

  absl::Status status() const override { return absl::OkStatus(); }

 private:
  core::Mutex mutex_;  // memory, pages and waits
  std::map<void*, std::unique_ptr<std::vector<char>>> memory_;
  std::set<void*> pinned_;
  std::set<Wait> waits_, forgotten_;
  std::set<Event> waits_on_host_, forgotten_on_host_;
  int64_t free_ = std::numeric_limits<int64_t>::max();
  FakeQueues queues_;  // last: its threads run what is queued
};

}  // namespace causeway::offload
