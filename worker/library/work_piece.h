// A piece of a tensor of θ to read, move or digest, and how that is done for θ in host memory.
//
//   values ◄─ kRead ── θ        values ── kWrite, kMix, kAdd ─► θ        sum ◄─ kDigest ── θ
//
// Pure: the same θ and values give the same bits, however a tensor is divided into pieces and among processes.
#pragma once

#include <cstdint>
#include <span>

#include "core/dtype.h"

namespace causeway::worker {

struct WorkPiece {
  enum class Kind { kRead = 1, kWrite = 2, kMix = 3, kAdd = 4, kDigest = 5, kKeep = 6 };

  int64_t id = 0;
  Kind kind = Kind::kRead;
  int tensor = 0;  // index in the manifest
  int64_t first = 0;
  int64_t count = 0;           // values of θ, from `first`
  std::span<float> values;     // `count` values, written for kRead, else only read; empty for kDigest
  uint64_t* digest = nullptr;  // kDigest: receives the sum
  int event = 0;               // kKeep: follows the copy into `values`, which are on the device
  float factor = 0;
  const float* on_device = nullptr;  // kWrite, kMix: also `values`, in the memory of the device that holds θ
  bool before_change = false;        // kRead: may be done later, before θ changes
  bool anchor = false;               // kWrite: values of the anchor, requested by ReadAnchor
};

// kRead to kAdd: on float32 with the bits of replica::HostStore; on other dtypes computed in float32 and rounded as in
// core/outer_step.h and core/dtype.h. `theta` points to the first of values.size() values in `dtype`.
void MoveTheta(WorkPiece::Kind kind, float factor, core::DType dtype, std::span<float> values, void* theta);

// kDigest: the digest of core/digest.h of `rows` times `columns` values, stored contiguously at `theta`; row r is
// values [first + r · stride, first + r · stride + columns) of the tensor, as in a shard of some of its columns.
struct ThetaBlock {
  int64_t first = 0;
  int64_t rows = 1;
  int64_t columns = 0;
  int64_t stride = 0;
};
uint64_t DigestTheta(uint64_t seed, core::DType dtype, const ThetaBlock& block, const void* theta);

}  // namespace causeway::worker
