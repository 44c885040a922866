// A device on which nothing is computed and everything takes time: what an update queues is kept, and played afterwards
// in virtual time, with the bus, the CPU and the host's memory shared by whatever runs at once.
//
//   backward's Compute, the update's calls ─► a line of operations for each queue, and one for the host ─► Play() ─►
//   when each event came
//
// Each direction of the bus is shared evenly by the copies that run on it. Where more of the host's memory is wanted
// than there is, the bus has its part first and the CPU the rest. The host's own part shows by its copies: the one of
// a subgroup's parameters comes right behind the CPU's update of it.
#pragma once

#include <algorithm>
#include <array>
#include <deque>
#include <limits>
#include <string>
#include <vector>

#include "core/check.h"
#include "offload/device.h"
#include "offload/subgroup_plan.h"

namespace causeway::offload {

class TimedDevice final : public Device {
 public:
  explicit TimedDevice(const Bandwidths& rates) : rates_(rates) {}

  // Anything that keeps a queue busy without the bus.
  void Compute(Queue queue, double seconds) { Add(static_cast<int>(queue), {.uses = kTime, .amount = seconds}); }

  std::string name() const override { return "timed"; }
  absl::StatusOr<void*> Allocate(size_t bytes) override { return memory_.emplace_back(bytes).data(); }
  void Free(void*) override {}
  int64_t free_bytes() override { return std::numeric_limits<int64_t>::max(); }
  absl::Status Pin(void*, size_t) override { return absl::OkStatus(); }
  void Unpin(void*) override {}

  void CopyToDevice(Queue queue, void*, const void*, size_t bytes) override {
    constexpr double kCpuBytes = 30, kParameterBytes = 2;  // of host memory for a value, but for the copy's way out
    if (queue == Queue::kParameters) {
      const double values = static_cast<double>(bytes) / kParameterBytes;
      Add(kHost, {.uses = kCpu, .amount = values, .memory_bytes = kCpuBytes * values});
    }
    Add(static_cast<int>(queue),
        {.uses = kToDevice, .amount = static_cast<double>(bytes), .memory_bytes = static_cast<double>(bytes)});
  }
  void CopyToHost(Queue queue, void*, const void*, size_t bytes) override {
    Add(static_cast<int>(queue),
        {.uses = kToHost, .amount = static_cast<double>(bytes), .memory_bytes = static_cast<double>(bytes)});
  }
  void AdamW(Queue, const AdamWConstants&, const AdamWArrays&) override {}  // in the device's memory: no time beside

  double SecondsBetween(Event first, Event last) override {
    const Played played = Play();
    return played.times[records_[last]] - played.times[records_[first]];
  }
  Event MakeEvent() override {
    records_.push_back(-1);
    return static_cast<Event>(records_.size()) - 1;
  }
  void Record(Event event, Queue queue) override {
    records_[event] = marks_++;
    Add(static_cast<int>(queue), {.mark = records_[event]});
  }
  void Await(Queue queue, Event event) override { AwaitOn(static_cast<int>(queue), event); }
  void AwaitOnHost(Event event) override { AwaitOn(kHost, event); }
  absl::Status status() const override { return absl::OkStatus(); }

  struct Played {
    double seconds = 0;         // of everything so far
    std::vector<double> times;  // of each mark
  };
  Played Play() const {
    auto lines = lines_;
    std::vector<bool> done(static_cast<size_t>(marks_));
    std::vector<double> times(done.size());
    int64_t issued = 0;  // of the host's operations
    double now = 0;
    while (true) {
      std::vector<Operation*> running;
      bool moved = false, waiting = false;
      for (int line = 0; line < kLines; ++line) {
        while (!lines[line].empty()) {
          Operation& first = lines[line].front();
          const bool ready = first.after_host <= issued && (first.awaits < 0 || done[first.awaits]);
          if (!ready || first.amount > 0) {
            waiting = true;
            if (ready) running.push_back(&first);
            break;
          }
          if (first.mark >= 0) {
            done[first.mark] = true;
            times[first.mark] = now;
          }
          if (line == kHost) ++issued;
          lines[line].pop_front();
          moved = true;
        }
      }
      if (moved) continue;  // others may be ready now
      if (!waiting) return {now, times};
      CHECK(!running.empty());
      now += Advance(running, rates_);
    }
  }

 private:
  enum Resource { kNothing, kToDevice, kToHost, kCpu, kTime };
  static constexpr int kHost = kNumQueues, kLines = kNumQueues + 1;

  struct Operation {
    Resource uses = kNothing;
    double amount = 0;  // bytes or, of the CPU, values that are left
    double memory_bytes = 0;
    int64_t awaits = -1, mark = -1;
    int64_t after_host = 0;  // operations of the host before it was queued
  };

  void Add(int line, Operation operation) {
    if (line != kHost) operation.after_host = std::ssize(lines_[kHost]);
    lines_[line].push_back(operation);
  }
  void AwaitOn(int line, Event event) {
    if (records_[event] >= 0) Add(line, {.awaits = records_[event]});
  }

  // Until one of them is through; the time it takes.
  static double Advance(const std::vector<Operation*>& running, const Bandwidths& rates) {
    const auto share = [&](Resource resource, double rate) {
      const auto users = std::ranges::count_if(running, [&](const Operation* one) { return one->uses == resource; });
      return users == 0 ? 0 : rate / static_cast<double>(users);
    };
    double speeds[] = {0, share(kToDevice, rates.to_device), share(kToHost, rates.to_host),
                       share(kCpu, rates.cpu_parameters), 1};
    double of_copies = 0, of_cpu = 0;  // bytes a second of host memory
    for (const Operation* one : running) {
      (one->uses == kCpu ? of_cpu : of_copies) += speeds[one->uses] * one->memory_bytes / one->amount;
    }
    const double for_copies = std::min(1.0, rates.dram / of_copies);
    const double for_cpu = std::clamp((rates.dram - of_copies) / of_cpu, 0.0, 1.0);
    for (const Resource resource : {kToDevice, kToHost}) speeds[resource] *= for_copies;
    if (of_cpu > 0) speeds[kCpu] *= for_cpu;
    double seconds = std::numeric_limits<double>::infinity();
    for (const Operation* one : running) seconds = std::min(seconds, one->amount / speeds[one->uses]);
    for (Operation* const one : running) {
      const double passed = seconds * speeds[one->uses];
      one->memory_bytes *= std::max(0.0, 1 - passed / one->amount);
      one->amount = one->amount - passed < 1e-9 * one->amount ? 0 : one->amount - passed;
    }
    return seconds;
  }

  const Bandwidths rates_;
  std::deque<std::vector<char>> memory_;
  std::vector<int64_t> records_;  // the mark of each event's last record; −1: none
  int64_t marks_ = 0;
  std::array<std::deque<Operation>, kLines> lines_;
};

}  // namespace causeway::offload
