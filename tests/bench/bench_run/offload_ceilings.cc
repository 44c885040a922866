#include "tests/bench/bench_run/offload_ceilings.h"

#include <cmath>

#include "core/multiversion.h"

namespace causeway::bench {
namespace {

using offload::AdamWArrays;

// As offload/adamw.cc walks its streams.
constexpr int64_t kBlock = 64, kAhead = 1024;

[[gnu::always_inline]] inline void Prefetch(const float* values) {
  for (int64_t i = 0; i < kBlock; i += 16) __builtin_prefetch(values + i);
}

CAUSEWAY_MULTIVERSION
void AddRun(const float* __restrict a, float* __restrict b, int64_t count) {
  int64_t i = 0;
  for (; i + kBlock <= count; i += kBlock) {
    Prefetch(a + i + kAhead);
    Prefetch(b + i + kAhead);
    for (int64_t j = 0; j < kBlock; ++j) b[i + j] += a[i + j];
  }
  for (; i < count; ++i) b[i] += a[i];
}

CAUSEWAY_MULTIVERSION
void MoveRun(const float* __restrict g, float* __restrict m, float* __restrict v, float* __restrict p, int64_t count) {
  const auto move = [=](int64_t i) {
    m[i] = std::fma(m[i], 0.5f, g[i]);
    v[i] = std::fma(v[i], 0.5f, 1e-3f);
    p[i] = std::fma(p[i], 0.5f, g[i]);
  };
  int64_t i = 0;
  for (; i + kBlock <= count; i += kBlock) {
    for (const float* stream :
         {g, static_cast<const float*>(m), static_cast<const float*>(v), static_cast<const float*>(p)}) {
      Prefetch(stream + i + kAhead);
    }
    for (int64_t j = 0; j < kBlock; ++j) move(i + j);
  }
  for (; i < count; ++i) move(i);
}

}  // namespace

void AddInPlace(const float* a, float* b, int64_t count) { AddRun(a, b, count); }

void MoveStreams(const AdamWArrays& arrays) {
  MoveRun(static_cast<const float*>(arrays.gradient), arrays.first_moment, arrays.second_moment, arrays.parameters,
          arrays.count);
}

}  // namespace causeway::bench
