// A piece of a tensor of θ that is read, moved or digested, and how that is done where θ is in the host's memory.
//
//   values ◄─ kRead ── θ        values ── kWrite, kMix, kAdd ─► θ        sum ◄─ kDigest ── θ
//
// Pure: the same θ and values give the same bits, however a tensor is cut into pieces and over processes.
#pragma once

#include <cstdint>
#include <span>

#include "core/dtype.h"

namespace causeway::worker {

struct WorkPiece {
  enum class Kind { kRead = 1, kWrite = 2, kMix = 3, kAdd = 4, kDigest = 5, kKeep = 6 };

  int64_t id = 0;
  Kind kind = Kind::kRead;
  int tensor = 0;  // of the manifest
  int64_t first = 0;
  int64_t count = 0;           // values of θ, from `first`
  std::span<float> values;     // `count` of them, written for kRead, else only read; empty for kDigest
  uint64_t* digest = nullptr;  // kDigest: where the sum goes
  int event = 0;               // kKeep: of the copy into `values`, which are on the device
  float factor = 0;
  const float* on_device = nullptr;  // kWrite, kMix: `values` in the memory of the device that holds θ, too
  bool before_change = false;        // kRead: may be done later, before θ changes
  bool anchor = false;               // kWrite: of the anchor, asked for by ReadAnchor
};

// kRead to kAdd: on float32 with the bits of replica::HostStore, on others computed in float32 and rounded as
// core/outer_step.h and core/dtype.h have it. `theta` is where the first of as many values lies, in `dtype`.
void MoveTheta(WorkPiece::Kind kind, float factor, core::DType dtype, std::span<float> values, void* theta);

// kDigest: core/theta_digest.h's of `rows` times `columns` values, which lie one after the other at `theta`; row r is
// values [first + r · stride, first + r · stride + columns) of the tensor, as a shard of some of its columns has them.
struct ThetaBlock {
  int64_t first = 0;
  int64_t rows = 1;
  int64_t columns = 0;
  int64_t stride = 0;
};
uint64_t DigestTheta(uint64_t seed, core::DType dtype, const ThetaBlock& block, const void* theta);

}  // namespace causeway::worker
