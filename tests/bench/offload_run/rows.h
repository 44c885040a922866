// The measurements of offload_run, a row at a time; the reader of the rows is tests/bench/offload.
#pragma once

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/status/statusor.h"
#include "core/random.h"
#include "core/thread_team.h"
#include "offload/device.h"

namespace causeway::bench {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;
using core::OnAllThreads;

inline double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

inline double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + std::ssize(values) / 2, values.end());
  return values[values.size() / 2];
}

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
