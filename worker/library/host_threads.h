// The host process's compute threads: those of its OpenMP runtime if one is loaded, else our own.
//
// OpenMP threads spin for milliseconds after each parallel loop, as PyTorch's do after backward. Our own threads would
// compete with them for the cores, so we run our work on the OpenMP threads.
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"

namespace causeway::worker {

// Calls work(first, count) for every piece of 0 … values − 1, concurrently and in any order; returns when all are done.
// Any thread; calls take turns.
void OnHostThreads(int64_t values, absl::FunctionRef<void(int64_t first, int64_t count)> work);

}  // namespace causeway::worker
