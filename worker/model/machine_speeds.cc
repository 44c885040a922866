#include "worker/model/machine_speeds.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "core/clock.h"
#include "core/multiversion.h"
#include "worker/model/llama_layers.h"

namespace causeway::worker {
namespace {

constexpr int kPasses = 5;

// Amounts a second.
double BestRate(double amount, const std::function<void()>& work) {
  work();
  double best = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    const core::Clock::TimePoint begin = core::SystemClock().Now();
    work();
    best = std::max(best, amount / core::SystemClock().SecondsSince(begin));
  }
  return best;
}

CAUSEWAY_MULTIVERSION
float Sum(const float* values, size_t size) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (size_t i = 0; i < size; ++i) sum += values[i];
  return sum;
}

double ReadRate(int64_t bytes) {
  const std::vector<float> values(static_cast<size_t>(bytes) / sizeof(float), 1.0f);
  const int64_t times = std::max<int64_t>(1, (int64_t{64} << 20) / bytes);
  volatile float sink = 0;
  return BestRate(static_cast<double>(bytes * times), [&] {
    for (int64_t i = 0; i < times; ++i) sink = sink + Sum(values.data(), values.size());
  });
}

}  // namespace

MachineSpeeds MeasureMachine() {
  constexpr int64_t kSide = 512;
  const std::vector<float> x(kSide * kSide, 0.5f), w(kSide * kSide, 0.25f);
  std::vector<float> y(kSide * kSide);
  return {.flops =
              BestRate(2.0 * kSide * kSide * kSide, [&] { Linear(kSide, kSide, kSide, x.data(), w.data(), y.data()); }),
          .l2 = ReadRate(int64_t{256} << 10),
          .l3 = ReadRate(int64_t{8} << 20),
          .dram = ReadRate(int64_t{256} << 20)};
}

}  // namespace causeway::worker
