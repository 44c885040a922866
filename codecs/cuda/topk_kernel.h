// topk and its family on a GPU: the work of one CTA on one unit. The bytes and the residual are those of the CPU codec.
//
//   d in shared memory ─► the k-th largest magnitude, 8 bits a round ─► indices in order ─► scale, codes, residual
//
// Device code alone, as unit_kernels.h.
#pragma once

#include <type_traits>

#include "codecs/cuda/unit_kernels.h"
#include "codecs/simd/block_kernels.h"
#include "codecs/topk_select.h"

namespace causeway::codecs::cuda {

inline constexpr int kUnit = kUnitBlocks * kBlock;
inline constexpr int kOfThread = kUnit / kThreads;  // values of one thread: neighbors, once they are in shared memory
inline constexpr int kBins = 256;

template <int kEntries>
struct TopkState {
  static constexpr int kIndexBytes = TopkIndexBytes(kEntries), kCodeBytes = TopkCodeBytes(kEntries);

  float d[kUnit];
  int bins[kBins];
  int before[kThreads];  // by thread: how many values are taken in the shares before its own
  int chosen[kEntries];
  uint32_t prefix;  // upper bits of the k-th largest magnitude, as far as known
  int wanted;       // how many of the values with this prefix are taken
  int count;        // number of entries
  float mean, scale;
};

CAUSEWAY_LANES uint32_t MagnitudeOf(float x) { return simd::BitsOf(x) & simd::kMagnitudeBits; }

template <int kEntries>
CAUSEWAY_LANES bool IsHigh(const TopkState<kEntries>& state, float d) {
  return Lanes::Abs(d) >= state.mean;
}
template <int kEntries>
CAUSEWAY_LANES float LevelOf(const TopkState<kEntries>& state, float d) {
  return IsHigh(state, d) ? kTopkHighLevel : kTopkLowLevel;
}

// Stores in `state` the magnitude from which values are taken, and how many of those that equal it.
template <int kEntries>
CAUSEWAY_LANES void FindThreshold(TopkState<kEntries>& state) {
  const int first = static_cast<int>(threadIdx.x) * kOfThread;
  for (int shift = 24; shift >= 0; shift -= 8) {
    state.bins[threadIdx.x] = 0;
    __syncthreads();
    const uint32_t prefix = state.prefix;
    for (int i = 0; i < kOfThread; ++i) {
      const uint32_t magnitude = MagnitudeOf(state.d[first + i]);
      const bool inside = shift == 24 || magnitude >> (shift + 8) == prefix >> (shift + 8);
      if (inside && magnitude != 0) atomicAdd(&state.bins[magnitude >> shift & (kBins - 1)], 1);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      int bin = kBins - 1;
      while (bin > 0 && state.bins[bin] < state.wanted) state.wanted -= state.bins[bin--];
      state.prefix |= static_cast<uint32_t>(bin) << shift;
    }
    __syncthreads();
  }
}

// Replaces the counts that the threads have put into `before` by the sums before each of them; `count` is the total.
template <int kEntries>
CAUSEWAY_LANES void SumsBefore(TopkState<kEntries>& state) {
  __syncthreads();
  if (threadIdx.x == 0) {
    int sum = 0;
    for (int thread = 0; thread < kThreads; ++thread) {
      const int of_thread = state.before[thread];
      state.before[thread] = sum;
      sum += of_thread;
    }
    state.count = sum;
  }
  __syncthreads();
}

// Chooses the indices of the entries, ascending; among equal magnitudes the first ones.
template <int kEntries>
CAUSEWAY_LANES void ChooseEntries(TopkState<kEntries>& state) {
  const int first = static_cast<int>(threadIdx.x) * kOfThread;
  int equal = 0;
  for (int i = 0; i < kOfThread; ++i) equal += MagnitudeOf(state.d[first + i]) == state.prefix;
  state.before[threadIdx.x] = equal;
  SumsBefore(state);
  int equal_left = state.wanted - state.before[threadIdx.x];
  uint32_t taken = 0;
  int count = 0;
  for (int i = 0; i < kOfThread; ++i) {
    const uint32_t magnitude = MagnitudeOf(state.d[first + i]);
    const bool is_equal = magnitude == state.prefix;
    if (magnitude == 0 || magnitude < state.prefix || (is_equal && equal_left <= 0)) continue;
    equal_left -= is_equal;
    taken |= 1u << i;
    ++count;
  }
  __syncthreads();
  state.before[threadIdx.x] = count;
  SumsBefore(state);
  int at = state.before[threadIdx.x];
  for (int i = 0; i < kOfThread; ++i) {
    if ((taken >> i & 1) != 0) state.chosen[at++] = first + i;
  }
  __syncthreads();
}

// One thread adds in the order of the reference.
template <int kEntries>
CAUSEWAY_LANES void ChooseScale(TopkState<kEntries>& state, uint8_t* scale) {
  if (threadIdx.x == 0) {
    float sum = 0;
    for (int k = 0; k < state.count; ++k) sum += Lanes::Abs(state.d[state.chosen[k]]);
    state.mean = sum / static_cast<float>(state.count > 1 ? state.count : 1);
    float product = 0, norm = 0;
    for (int k = 0; k < state.count; ++k) {
      const float d = state.d[state.chosen[k]], level = LevelOf(state, d);
      product = Lanes::Fma(Lanes::Abs(d), level, product);
      norm = Lanes::Fma(level, level, norm);
    }
    state.scale = simd::StoreScale<Lanes, kTopkScaleExponent>(state.count == 0 ? 0.0f : product / norm, scale);
  }
  __syncthreads();
}

template <int kEntries>
__global__ void __launch_bounds__(kThreads) EncodeTopk(const EncodeTask task) {
  constexpr int kCodeBytes = TopkState<kEntries>::kCodeBytes;
  using Piece = std::conditional_t<kCodeBytes % sizeof(uint4) == 0, uint4, uint2>;  // units are aligned to it
  static_assert(kCodeBytes % sizeof(Piece) == 0);
  __shared__ TopkState<kEntries> state;
  __shared__ __align__(kLineBytes) uint8_t codes[kCodeBytes];
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kUnit;
  const auto thread = static_cast<int>(threadIdx.x);
  const int valid = static_cast<int>(min(static_cast<int64_t>(kUnit), task.job.count - first));
  for (int i = thread; i < kUnit; i += kThreads) {
    float d = 0;
    if (i < valid) {
      d = task.job.values[first + i];
      if (task.job.subtract != nullptr) d -= task.job.subtract[first + i];
      if (task.job.residual != nullptr) d = Lanes::Fma(task.job.beta, task.job.residual[first + i], d);
    }
    if (MagnitudeOf(d) >= simd::kMaxMagnitudeBits) {
      if (!task.job.saturate) atomicMin(task.bad_block, static_cast<unsigned long long>((first + i) / kBlock));
      d = Lanes::WithSignOf(simd::FloatOf(simd::kMaxMagnitudeBits - 1), d);
    }
    state.d[i] = d;
  }
  if (thread == 0) {
    state.prefix = 0;
    state.wanted = kEntries;
  }
  for (int i = thread; i < kCodeBytes; i += kThreads) codes[i] = 0;
  __syncthreads();
  FindThreshold(state);
  ChooseEntries(state);
  ChooseScale(state, task.job.scales + blockIdx.x * kScaleBytes);

  const auto entry = [&](int k) { return k < state.count && state.scale != 0 ? state.chosen[k] : 0; };
  for (int two = thread; two < kEntries / 2; two += kThreads) {  // two indices are three bytes
    const auto pair = static_cast<uint32_t>(entry(2 * two) | entry(2 * two + 1) << kTopkIndexBits);
    for (int byte = 0; byte < 3; ++byte) codes[3 * two + byte] = static_cast<uint8_t>(pair >> 8 * byte);
  }
  if (thread < kEntries / 4) {  // four signs and levels are one byte
    uint32_t bits = 0;
    for (int k = 4 * thread; k < 4 * thread + 4 && k < state.count && state.scale != 0; ++k) {
      const float d = state.d[state.chosen[k]];
      const uint32_t code = simd::BitsOf(d) >> 31 | (IsHigh(state, d) ? 2u : 0u);
      bits |= code << 2 * (k % 4);
    }
    codes[TopkState<kEntries>::kIndexBytes + thread] = static_cast<uint8_t>(bits);
  }
  if (task.job.next_residual != nullptr) {
    for (int i = thread; i < valid; i += kThreads) task.job.next_residual[first + i] = state.d[i];
  }
  __syncthreads();
  CopyLines<Piece>(codes, task.job.codes + static_cast<int64_t>(blockIdx.x) * kCodeBytes, kCodeBytes);
  if (task.job.next_residual == nullptr || state.scale == 0) return;
  for (int k = thread; k < state.count; k += kThreads) {
    const int i = state.chosen[k];
    const float d = state.d[i];
    task.job.next_residual[first + i] = d - Lanes::WithSignOf(LevelOf(state, d) * state.scale, d);
  }
}

}  // namespace causeway::codecs::cuda
