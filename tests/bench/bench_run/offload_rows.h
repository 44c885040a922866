// The measurements of the case `offload`, a row at a time.
#pragma once

#include "absl/status/statusor.h"
#include "core/random.h"
#include "core/thread_team.h"
#include "offload/device.h"
#include "tests/bench/bench_run/bench_run.h"

namespace causeway::bench {

using core::OnAllThreads;

// Uniform in [−largest, largest), a function of seed and place.
inline float Uniform(uint64_t seed, int64_t i, float largest) {
  return largest * (static_cast<float>(core::SplitMix64(seed << 40 ^ static_cast<uint64_t>(i)) >> 40) * 0x1p-23f - 1);
}

struct CpuOptions {
  int64_t values = 0;
  int threads = 1;  // at most
  int pairs = 0;
  bool bfloat16_gradients = false;
};
Json MeasureBandwidth(const CpuOptions& options);  // AdamW ÷ ceilings, the copy in the same pass ÷ in a pass of its own
Json MeasureTiny(const CpuOptions& options);       // denormal state and gradients ÷ ordinary ones
Json MeasureThreads(const CpuOptions& options);    // all threads ÷ one

struct GpuOptions {
  int64_t parameters = 0;
  int64_t subgroup = 0;
  int64_t k = 0;
  int threads = 1;
  int steps = 0;
  double backward_s = 0;  // of a simulated one
  bool flush_during_backward = true;
};
absl::StatusOr<Json> MeasureBus(offload::Device& device, int64_t bytes);  // each way, and both at once
absl::StatusOr<Json> MeasureUpdate(offload::Device& device, const GpuOptions& options);

}  // namespace causeway::bench
