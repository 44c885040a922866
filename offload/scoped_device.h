// Makes a device the calling thread's current one for as long as it lives, and then the one before again: our calls
// come on threads of the user's program, too.
//
//   ScopedDevice here(1) ─► calls on device 1 ─► its end: the device before
//
// Meanwhile the thread's calls, allocations among them, do not end the capture of a graph on another thread. A device
// before that has no context, as on a thread that has chosen none, stays unchosen: to choose it would make one there,
// of hundreds of megabytes. Lives on one thread; nests.
#pragma once

namespace causeway::offload {

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

  Error error() const { return error_; }  // of choosing it

 private:
  const int index_, before_;  // −1: unknown
  Error error_{};             // success
  Mode mode_;                 // before
};

}  // namespace causeway::offload
