// A GPU for the update phase (offload/device.h): a stream for each queue, so that both directions of the bus, the
// kernels and backward run side by side, and the AdamW kernel.
//
//   p, m, v, gradient (device memory) ─► one thread per 4 values: offload/adamw.h ─► p, m, v, bfloat16 copy
//
// The kernel is the CPU's source text for a value, compiled without contraction and with IEEE division and square root,
// so that it gives the CPU's bits (except for the payload of NaNs). Memory comes from cudaMalloc; Pin registers whole
// pages, and leaves pages alone that are already registered. Each call chooses the device for the calling thread, and
// leaves the thread with the one before (current_device.h). Streams do not wait for the default stream. The first
// error is kept: status() names the attempted operation and CUDA's text, and nothing is queued after it.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "offload/device.h"

namespace causeway::offload {

// The device, for other code that queues work on its streams.
class CudaDevice : public Device {
 public:
  virtual int index() const = 0;                  // CUDA's number of it; for a CurrentDevice around calls of other code
  virtual void* StreamOf(Queue queue) const = 0;  // a cudaStream_t
  // Queues a copy on the device and then the event, on any of its streams.
  virtual void CopyOn(void* stream, void* to, const void* from, size_t bytes, Event event) = 0;
  virtual void Fail(const absl::Status& status) = 0;  // an error of work queued on a stream: the first one is kept
};

// UNAVAILABLE where there is no driver, no device that it shows us, or one for which this build has no kernels (before
// compute capability 8.0); NOT_FOUND where there are fewer than `index` + 1.
absl::StatusOr<std::unique_ptr<CudaDevice>> MakeCudaDevice(int index);

}  // namespace causeway::offload
