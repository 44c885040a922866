// The threads that the host process computes with: those of its OpenMP where it has one loaded, else ours.
//
// OpenMP's threads spin for milliseconds after each of the process's loops, as PyTorch's do after backward. Threads of
// our own would share their cores with them; so these do our work, too.
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"

namespace causeway::worker {

// Calls work(first, count) for every piece of 0 … values − 1, at once and in any order; returns when all is done. Any
// thread; calls take turns.
void OnHostThreads(int64_t values, absl::FunctionRef<void(int64_t first, int64_t count)> work);

}  // namespace causeway::worker
