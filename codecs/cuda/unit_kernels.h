// The work of one CTA on one unit: 16 blocks, half a warp each.
//
//   values ─► d in registers, 16 a thread ─► kernel (codecs/simd) ─► shared memory ─► whole lines, by all threads
//
// Device code alone, without the toolkit's headers, so that a test may run it on threads of a CPU as well.
#pragma once

#include <cstdint>

#include "codecs/codec.h"
#include "codecs/cuda/half_warp.h"
#include "codecs/simd/integer_kernels.h"
#include "codecs/simd/lloyd_max_kernels.h"
#include "codecs/simd/rotated_kernels.h"

namespace causeway::codecs::cuda {

using simd::kBlock;
using simd::kLanes;
using simd::kVectors;
using Lanes = simd::HalfWarp;
using Values = simd::Block<Lanes>;

inline constexpr int kUnitBlocks = 16;
inline constexpr int kThreads = kUnitBlocks * kLanes;  // one CTA a unit, half a warp a block
inline constexpr int kLineBytes = 64;
inline constexpr int kScaleBytes = 2;  // at most, of a block

// The arguments of a launch. Device code reads no std::optional, so the values of optionals are stored beside them.
struct EncodeTask {
  EncodeJob job;
  int64_t blocks;
  bool rotate;
  Rotation rotation;
  bool whole_blocks;  // padding is not zero: a codec that rotates
  bool in_domain;     // the input has whole blocks, too
  unsigned long long* bad_block;
};

struct DecodeTask {
  DecodeJob job;
  int64_t blocks;
  bool rotate;
  Rotation rotation;
  bool whole_blocks;  // the output has them
  bool add;
  float weight;
};

CAUSEWAY_LANES int64_t BlockOfThread() { return static_cast<int64_t>(blockIdx.x) * kUnitBlocks + threadIdx.x / kLanes; }

// The number of values in the block: 256, fewer in the last one, 0 beyond it.
CAUSEWAY_LANES int ValuesIn(int64_t block, int64_t count) {
  const int64_t left = count - block * kBlock;
  return left <= 0 ? 0 : left < kBlock ? static_cast<int>(left) : kBlock;
}

CAUSEWAY_LANES int IndexOf(int v) { return kLanes * v + Lanes::Lane(); }

CAUSEWAY_LANES Values LoadBlock(const float* values, int64_t block, int valid) {
  Values x;
  CAUSEWAY_UNROLL
  for (int v = 0; v < kVectors; ++v) x.v[v] = IndexOf(v) < valid ? values[block * kBlock + IndexOf(v)] : 0.0f;
  return x;
}

CAUSEWAY_LANES Values LoadInput(const EncodeTask& task, int64_t block, int valid, int kept) {
  Values d = LoadBlock(task.job.values, block, task.in_domain ? kept : valid);
  if (task.job.subtract != nullptr) {
    const Values other = LoadBlock(task.job.subtract, block, task.in_domain ? kept : valid);
    CAUSEWAY_UNROLL
    for (int v = 0; v < kVectors; ++v) d.v[v] -= other.v[v];
  }
  if (task.rotate) {
    uint64_t words[4];
    simd::SignWords(task.rotation.seed, task.rotation.first_block + block, words);
    simd::Rotate<Lanes>(Lanes::PlaneOf(words), d);
  }
  if (task.job.residual != nullptr) {
    const Values e = LoadBlock(task.job.residual, block, kept);
    CAUSEWAY_UNROLL
    for (int v = 0; v < kVectors; ++v) d.v[v] = Lanes::Fma(task.job.beta, e.v[v], d.v[v]);
  }
  return d;
}

CAUSEWAY_LANES void Saturate(Values& d) {
  CAUSEWAY_UNROLL
  for (int v = 0; v < kVectors; ++v) {
    const uint32_t magnitude = Lanes::MinInt(Lanes::Bits(Lanes::Abs(d.v[v])), simd::kMaxMagnitudeBits - 1);
    d.v[v] = Lanes::WithSignOf(Lanes::FromBits(magnitude), d.v[v]);
  }
}

// The place of the residual, as far as it is kept.
struct KeepResidual {
  float* to;
  int kept;
  CAUSEWAY_LANES void operator()(int v, float d, float decoded) const {
    if (to != nullptr && IndexOf(v) < kept) to[IndexOf(v)] = d - decoded;
  }
};

// Copies the CTA's output to its destination, a piece a thread. Both ends are aligned to pieces.
template <class Piece = uint4>
CAUSEWAY_LANES void CopyLines(const uint8_t* from, uint8_t* to, int64_t bytes) {
  constexpr int64_t kPiece = sizeof(Piece);
  for (int64_t at = threadIdx.x * kPiece; at + kPiece <= bytes; at += kThreads * kPiece) {
    *reinterpret_cast<Piece*>(to + at) = *reinterpret_cast<const Piece*>(from + at);
  }
  const int64_t rest = bytes / kPiece * kPiece;
  for (int64_t at = rest + threadIdx.x; at < bytes; at += kThreads) to[at] = from[at];
}

template <class K>
__global__ void __launch_bounds__(kThreads) EncodeUnits(const EncodeTask task) {
  __shared__ __align__(kLineBytes) uint8_t codes[kUnitBlocks * K::kCodeBytes];
  __shared__ __align__(kLineBytes) uint8_t scales[kUnitBlocks * kScaleBytes];
  const int64_t block = BlockOfThread();
  const int in_unit = threadIdx.x / kLanes;
  const int valid = ValuesIn(block, task.job.count);
  const int kept = task.whole_blocks && valid > 0 ? kBlock : valid;
  Values d = LoadInput(task, block, valid, kept);
  const bool in_range = simd::LargestMagnitude<Lanes>(d) < simd::kMaxMagnitudeBits;
  if (!in_range && !task.job.saturate && Lanes::Lane() == 0) {
    atomicMin(task.bad_block, static_cast<unsigned long long>(block));
  }
  if (!in_range) Saturate(d);  // useless if refused, but harmless to the other half of the warp
  const float inverse_count = task.whole_blocks ? 1.0f / kBlock : 1.0f / static_cast<float>(valid);
  float* residual = task.job.next_residual == nullptr ? nullptr : task.job.next_residual + block * kBlock;
  uint8_t* codes_of_block = codes + in_unit * K::kCodeBytes;
  typename K::State state;
  K::Summarize(d, state);
  K::Normalize(d, state);
  K::ChooseScale(d, state, {inverse_count, task.job.gain}, scales + in_unit * K::kScaleBytes, codes_of_block);
  K::Encode(d, state, codes_of_block, KeepResidual{residual, kept});
  __syncthreads();
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kUnitBlocks;
  const int64_t blocks = min(static_cast<int64_t>(kUnitBlocks), task.blocks - first);
  CopyLines(codes, task.job.codes + first * K::kCodeBytes, blocks * K::kCodeBytes);
  CopyLines(scales, task.job.scales + first * K::kScaleBytes, blocks * K::kScaleBytes);
}

struct IntoBlock {
  Values& block;
  CAUSEWAY_LANES void operator()(int v, float x) const { block.v[v] = x; }
};

template <class K>
__global__ void __launch_bounds__(kThreads) DecodeUnits(const DecodeTask task) {
  __shared__ __align__(kLineBytes) uint8_t codes[kUnitBlocks * K::kCodeBytes];
  __shared__ __align__(kLineBytes) uint8_t scales[kUnitBlocks * kScaleBytes];
  const int64_t block = BlockOfThread();
  const int in_unit = threadIdx.x / kLanes;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kUnitBlocks;
  const int64_t blocks = min(static_cast<int64_t>(kUnitBlocks), task.blocks - first);
  CopyLines(task.job.codes + first * K::kCodeBytes, codes, blocks * K::kCodeBytes);
  CopyLines(task.job.scales + first * K::kScaleBytes, scales, blocks * K::kScaleBytes);
  __syncthreads();
  Values x;
  K::Decode(scales + in_unit * K::kScaleBytes, codes + in_unit * K::kCodeBytes, IntoBlock{x});
  if (task.rotate) {
    uint64_t words[4];
    simd::SignWords(task.rotation.seed, task.rotation.first_block + block, words);
    simd::Unrotate<Lanes>(Lanes::PlaneOf(words), x);
  }
  const int valid = ValuesIn(block, task.job.count);
  const int written = task.whole_blocks && valid > 0 ? kBlock : valid;
  float* values = task.job.values + block * kBlock;
  CAUSEWAY_UNROLL
  for (int v = 0; v < kVectors; ++v) {
    if (IndexOf(v) >= written) continue;
    float& value = values[IndexOf(v)];
    value = task.add ? Lanes::Fma(task.weight, x.v[v], value) : x.v[v];
  }
}

}  // namespace causeway::codecs::cuda
