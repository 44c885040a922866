// A device on the host alone, whose queues run in any order that events allow: what a schedule forgot to wait for shows
// as wrong values (device memory begins as NaN), and under ThreadSanitizer as a race.
//
//   kStepped   one thread: between two calls of the host some of what may run runs, which and how much by the seed
//   kThreads   a thread for each queue, with random delays; nothing is ordered but by events, as on a real device
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/random.h"
#include "offload/device.h"

namespace causeway::offload {

class FakeDevice : public Device {
 public:
  enum class Runs { kStepped, kThreads };
  using Wait = std::pair<offload::Queue, Event>;

  FakeDevice(Runs runs, uint64_t seed) : runs_(runs), seed_(seed) {
    if (runs == Runs::kStepped) return;
    for (Line& line : lines_) line.thread = std::thread([this, &line] { Serve(line); });
  }
  ~FakeDevice() override {
    for (Line& line : lines_) {
      if (!line.thread.joinable()) continue;
      Push(line, {});
      line.thread.join();
    }
  }

  // From here on these waits are forgotten: what a test does not notice then, it does not test.
  void Forget(const Wait& wait) { forgotten_.insert(wait); }
  const std::set<Wait>& waits() const { return waits_; }

  // Anything else that runs on the device: backward, forward.
  void Launch(offload::Queue queue, std::function<void()> work) { Add(queue, {.work = std::move(work)}); }

  std::string name() const override { return "fake"; }
  absl::StatusOr<void*> Allocate(size_t bytes) override {
    auto memory = std::make_unique<std::vector<char>>(bytes, '\xff');  // NaN
    void* data = memory->data();
    memory_[data] = std::move(memory);
    return data;
  }
  void Free(void* memory) override { memory_.erase(memory); }
  absl::Status Pin(void* host, size_t) override {
    CHECK(pinned_.insert(host).second);
    return absl::OkStatus();
  }
  void Unpin(void* host) override { CHECK(pinned_.erase(host) == 1); }
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

  Event MakeEvent() override {
    events_.emplace_back();
    return static_cast<Event>(events_.size()) - 1;
  }
  void Record(Event event, offload::Queue queue) override {
    EventState& state = events_[event];
    const int64_t record = ++state.recorded;
    Add(queue, {.work = [&state, record] {
          state.come.store(record, std::memory_order_release);
          state.come.notify_all();
        }});
  }
  void Await(offload::Queue queue, Event event) override {
    waits_.insert({queue, event});
    if (forgotten_.contains({queue, event})) return;
    Add(queue, {.event = &events_[event], .record = events_[event].recorded});
  }
  void AwaitOnHost(Event event) override {
    EventState& state = events_[event];
    if (runs_ == Runs::kThreads) {
      AwaitRecord(state, state.recorded);
      return;
    }
    while (!HasCome(state, state.recorded)) CHECK(StepOne());  // otherwise queues wait for each other in a circle
  }

  absl::Status status() const override { return absl::OkStatus(); }

 private:
  struct EventState {
    int64_t recorded = 0;  // the host's
    std::atomic<int64_t> come = 0;
  };
  struct Op {
    std::function<void()> work;
    EventState* event = nullptr;  // to wait for, instead of work
    int64_t record = 0;
  };
  // One writer, one reader; a reader never tells the writer anything, so that only events order what the host sees.
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

  void Add(offload::Queue queue, Op op) {
    Line& line = lines_[static_cast<int>(queue)];
    if (runs_ == Runs::kThreads) {
      Push(line, std::move(op));
      return;
    }
    line.ops.push_back(std::move(op));
    // By the seed: nothing runs before the host waits, everything does at once, or some.
    const uint64_t eagerness = seed_ % 4;
    for (uint64_t steps = eagerness == 0 ? 0 : eagerness == 1 ? 1000 : Random(6); steps > 0 && StepOne(); --steps)
      continue;
  }

  // Runs the front of one queue that may run; false if there is none.
  bool StepOne() {
    const auto start = static_cast<int>(Random(kNumQueues));
    for (int i = 0; i < kNumQueues; ++i) {
      std::deque<Op>& ops = lines_[(start + i) % kNumQueues].ops;
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
  uint64_t draws_ = 0;
  Line lines_[kNumQueues];
  std::deque<EventState> events_;  // addresses stay
  std::map<void*, std::unique_ptr<std::vector<char>>> memory_;
  std::set<void*> pinned_;
  std::set<Wait> waits_, forgotten_;
};

}  // namespace causeway::offload
