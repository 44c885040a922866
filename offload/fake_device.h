// A device emulated on the host, whose queues run in any order that events allow (offload/fake_queues.h): a wait that a
// schedule forgot shows as wrong values (device memory begins as NaN), and under ThreadSanitizer as a race.
#pragma once

#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/mutex.h"
#include "offload/device.h"
#include "offload/fake_queues.h"

namespace causeway::offload {

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
