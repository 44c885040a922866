// Values that kernels load and store: float, or bfloat16 rounded once; one by one, or 16 bytes at a time.
//
// A pack of kPack<T> neighbors is one access of a lane: only with such accesses does a GPU's memory reach full speed.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "core/bfloat16.h"
#include "worker/device/kernels/block.h"
#include "worker/device/kernels/device_math.h"

namespace causeway::worker {

struct Bfloat16 {
  uint16_t bits;
};

CAUSEWAY_ANYWHERE float Load(float x) { return x; }
CAUSEWAY_ANYWHERE float Load(Bfloat16 x) { return core::FromBfloat16(x.bits); }
CAUSEWAY_ANYWHERE void Store(float x, float& to) { to = x; }
CAUSEWAY_ANYWHERE void Store(float x, Bfloat16& to) { to.bits = core::ToBfloat16(x); }

template <typename T>
inline constexpr int kPack = 16 / sizeof(T);

// Whether rows of that many values all begin at a pack boundary.
template <typename T>
CAUSEWAY_ANYWHERE bool Packs(int64_t values) {
  return values % kPack<T> == 0;
}

template <int N>
struct Floats {
  float values[N];
};
template <int N, typename T>
struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) Neighbours {
  T values[N];
};

// N neighbors, which begin at a multiple of their size or of 16 bytes, the longest access.
template <int N, typename T>
CAUSEWAY_ANYWHERE Floats<N> Loaded(const T* from) {
  const Neighbours<N, T> stored = *reinterpret_cast<const Neighbours<N, T>*>(from);
  Floats<N> loaded;
  for (int i = 0; i < N; ++i) loaded.values[i] = Load(stored.values[i]);
  return loaded;
}
template <int N, typename T>
CAUSEWAY_ANYWHERE void StoreAll(const Floats<N>& values, T* to) {
#ifdef __CUDA_ARCH__
  if constexpr (N == 8 && sizeof(T) == 2) {  // nvcc would store halves one by one
    const auto word = [&](int i) { return Bfloat16Pair(values.values[i], values.values[i + 1]); };
    __stwb(reinterpret_cast<uint4*>(to), uint4{word(0), word(2), word(4), word(6)});
  } else
#endif
  {
    Neighbours<N, T> stored;
    for (int i = 0; i < N; ++i) Store(values.values[i], stored.values[i]);
    *reinterpret_cast<Neighbours<N, T>*>(to) = stored;
  }
}

// A constant for lambdas. (std::integral_constant's conversion is for the host only.)
template <int N>
struct Width {
  CAUSEWAY_ANYWHERE constexpr operator int() const { return N; }  // NOLINT(google-explicit-constructor)
};

// Calls f(lane, i, width) for the values from i to i + width of `count`: packs where `packed`, then one by one. `count`
// is at most 2^31.
template <typename T, typename Block, typename F>
CAUSEWAY_ANYWHERE void EachPack(Block& block, int64_t count, bool packed, const F& f) {
  constexpr int kWidth = kPack<T>;
  const auto end = static_cast<int32_t>(count);
  const int32_t whole = packed ? end / kWidth * kWidth : 0;
  block.Each([&](int lane) {
    for (int32_t i = lane * kWidth; i < whole; i += kLanes * kWidth) f(lane, i, Width<kWidth>());
    for (int32_t i = whole + lane; i < end; i += kLanes) f(lane, i, Width<1>());
  });
}

inline constexpr int64_t kValuesPerBlock = 8 * kLanes;  // in kernels over flat arrays
CAUSEWAY_ANYWHERE int64_t BlocksOf(int64_t values) { return (values + kValuesPerBlock - 1) / kValuesPerBlock; }

// Whether all these begin at a pack boundary.
CAUSEWAY_ANYWHERE bool BeginPack(std::initializer_list<const void*> arrays) {
  uintptr_t bits = 0;
  for (const void* const array : arrays) bits |= reinterpret_cast<uintptr_t>(array);
  return bits % 16 == 0;
}

// Calls f(i, width) for the block's share of `count` values: kWidth at a time where `packed`, then one by one.
template <int kWidth, typename Block, typename F>
CAUSEWAY_ANYWHERE void EachValue(Block& block, int64_t count, bool packed, const F& f) {
  const int64_t first = block.index() * kValuesPerBlock;
  const int64_t end = first + kValuesPerBlock < count ? first + kValuesPerBlock : count;
  const int64_t whole = packed ? first + (end - first) / kWidth * kWidth : first;
  block.Each([&](int lane) {
    for (int64_t i = first + lane * kWidth; i < whole; i += kLanes * kWidth) f(i, Width<kWidth>());
    for (int64_t i = whole + lane; i < end; i += kLanes) f(i, Width<1>());
  });
}

}  // namespace causeway::worker
