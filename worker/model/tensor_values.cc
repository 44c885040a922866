#include "worker/model/tensor_values.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/check.h"
#include "core/host_limits.h"
#include "core/random.h"

namespace causeway::worker {
namespace {

// More threads than pieces of this many values would only wait.
constexpr int64_t kValuesPerThread = int64_t{1} << 16;

}  // namespace

int UpdateThreads(int64_t values) {
  return static_cast<int>(std::clamp<int64_t>(values / kValuesPerThread, 1, core::UsableCores()));
}

TensorValues::TensorValues(const core::Manifest& manifest) : TensorValues(manifest, std::span<float>()) {}

TensorValues::TensorValues(const core::Manifest& manifest, std::span<float> memory) : flat_(memory) {
  const auto count = static_cast<size_t>(core::NumParameters(manifest));
  if (memory.empty()) {
    values_ = offload::HostArray(count * sizeof(float));
    flat_ = values_.Values<float>();
  }
  CHECK(flat_.size() == count);
  float* next = flat_.data();
  for (const core::TensorSpec& spec : manifest) {
    spans_.emplace_back(next, static_cast<size_t>(spec.NumValues()));
    next += spec.NumValues();
  }
}

void TensorValues::Clear() { std::ranges::fill(Flat(), 0.0f); }

void FillNormal(uint64_t seed, const std::string& name, double stddev, std::span<float> values,
                core::ThreadTeam& team) {
  const uint64_t stream = core::HashCombine(seed, name);
  core::OnAllThreads(team, std::ssize(values), [&](int64_t first, int64_t count) {  // of pairs, but for the last
    const auto end = static_cast<size_t>(first + count);
    for (auto i = static_cast<size_t>(first); i < end; i += 2) {  // Box–Muller gives two at a time
      const double radius = std::sqrt(-2 * std::log(1 - core::UnitInterval(core::HashCombine(stream, i))));
      const double angle = 2 * std::numbers::pi * core::UnitInterval(core::HashCombine(stream, i + 1));
      values[i] = static_cast<float>(stddev * radius * std::cos(angle));
      if (i + 1 < end) values[i + 1] = static_cast<float>(stddev * radius * std::sin(angle));
    }
  });
}

void FillNormal(uint64_t seed, const std::string& name, double stddev, std::span<float> values) {
  core::ThreadTeam alone(1);
  FillNormal(seed, name, stddev, values, alone);
}

}  // namespace causeway::worker
