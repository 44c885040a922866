// The stream of a GPU on which NcclCollectives queues (worker/ranks/stream_hooks.h): a separate stream, which does not
// wait for the default stream, with CUDA's events on it.
//
//   Record() = 7 ──► cudaEventRecord      Done(7) ──► cudaEventQuery of the events from the first that is not done;
//                                                     an event that is done is reused
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/ranks/stream_hooks.h"

namespace causeway::worker {

// `device` counts those that CUDA shows, from 0. UNAVAILABLE, with CUDA's text, if there is no device of that number.
absl::StatusOr<std::shared_ptr<StreamHooks>> MakeCudaStreamHooks(int device);

}  // namespace causeway::worker
