// Picks AdamW's way through memory on this machine, once: it is timed in under a second, and kept in the file of
// calibration.h. On Intel instructions that fetch ahead gain 5 to 10 %; on some AMD they lose more.
#pragma once

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "offload/adamw.h"

namespace causeway::offload {

// Calls work(first, count) for all parts of 0 … values − 1, on the threads that will step.
using OnThreads = absl::FunctionRef<void(int64_t values, absl::FunctionRef<void(int64_t first, int64_t count)> work)>;

// The fastest of all ways with a state of this many values; the default, unless another is faster by more than 3 %.
AdamWWalk MeasureWalk(int64_t values, OnThreads on_threads);

// Sets the file's choice for this processor and number of threads, or measures and adds one. For a state that caches
// may hold nothing is done.
void ChooseWalk(int64_t values, int threads, OnThreads on_threads, const std::string& path);

}  // namespace causeway::offload
