// The update phase's interface to a device: memory, copies over the bus, events between queues, and one AdamW kernel.
//
//   kCompute ──event──► kGradients (to the host)            queues run side by side; what is queued on one runs in
//   kPrefetch ──event──► kUpdate ──event──► kFlush           order; an event says that everything before it on its
//   kParameters (to the device)                              queue is done
//
//
// kSync is for contributions, which another thread encodes in parallel.
//
// Nothing here blocks except AwaitOnHost. REQUIRES: host memory that is copied does not change until the copy is done,
// which only events tell. Errors of queued work show in status() from then on, and work queued after them does nothing.
// Implementations: offload/cuda/cuda_device.h, and tests/offload/fake_device.h on the host alone. Queueing is for one
// thread at a time and queue; different queues may be used from different threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/stream_priority.h"
#include "offload/adamw.h"

namespace causeway::offload {

enum class Queue { kCompute, kGradients, kPrefetch, kUpdate, kFlush, kParameters, kSync };
inline constexpr int kNumQueues = 7;
constexpr core::StreamPurpose PurposeOf(Queue queue) {
  return queue == Queue::kSync ? core::StreamPurpose::kSync : core::StreamPurpose::kStep;
}

class Device {
 public:
  using Event = int;  // an event that MakeEvent returned

  virtual ~Device() = default;

  virtual std::string name() const = 0;

  // Device memory, not zeroed; RESOURCE_EXHAUSTED says how much was asked for. Freed with the device or by Free.
  virtual absl::StatusOr<void*> Allocate(size_t bytes) = 0;
  virtual void Free(void* memory) = 0;
  virtual int64_t free_bytes() = 0;  // approximate memory that Allocate could give
  // Lets the bus reach the pages directly, which makes copies fast and non-blocking.
  virtual absl::Status Pin(void* host, size_t bytes) = 0;
  virtual void Unpin(void* host) = 0;

  virtual void CopyToDevice(Queue queue, void* device, const void* host, size_t bytes) = 0;
  virtual void CopyToHost(Queue queue, void* host, const void* device, size_t bytes) = 0;
  virtual void AdamW(Queue queue, const AdamWConstants& constants, const AdamWArrays& arrays) = 0;

  // An event counts as done until it is first recorded; a wait is for the latest record before it.
  virtual Event MakeEvent() = 0;
  virtual void Record(Event event, Queue queue) = 0;
  virtual void Await(Queue queue, Event event) = 0;
  virtual void AwaitOnHost(Event event) = 0;

  // An event whose time is kept, too; and the seconds from one to a later one, both recorded and awaited on the host.
  virtual Event MakeTimedEvent() { return MakeEvent(); }
  virtual double SecondsBetween(Event first, Event last) = 0;

  virtual absl::Status status() const = 0;
};

// Makes a device the calling thread's current one for as long as it lives, and then the one before again: our calls
// come on threads of the user's program, too.
//
//   ScopedDevice here(1) ─► calls on device 1 ─► its end: the device before
//
// Meanwhile the thread's calls, allocations among them, do not end the capture of a graph on another thread. A device
// before that has no context, as on a thread that has chosen none, stays unchosen: to choose it would make one there,
// of hundreds of megabytes. Lives on one thread; nests.

// Runtime: static functions with CUDA's meaning (offload/cuda/current_device.h).
template <typename Runtime>
class ScopedDevice {
 public:
  using Error = typename Runtime::Error;
  using Mode = typename Runtime::Mode;

  explicit ScopedDevice(int index) : index_(index), before_(Runtime::Current()) {
    if (before_ != index) error_ = Runtime::Choose(index);
    mode_ = Runtime::ExchangeMode(Runtime::kRelaxed);
  }
  ~ScopedDevice() {
    Runtime::ExchangeMode(mode_);
    if (before_ >= 0 && before_ != index_ && Runtime::HasContext(before_)) Runtime::Choose(before_);
  }
  ScopedDevice(const ScopedDevice&) = delete;
  ScopedDevice& operator=(const ScopedDevice&) = delete;

  Error error() const { return error_; }  // the result of choosing the device

 private:
  const int index_, before_;  // −1: unknown
  Error error_{};             // success
  Mode mode_;                 // the thread's mode before
};

}  // namespace causeway::offload
