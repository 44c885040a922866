#include "worker/library/work_piece.h"

#include <algorithm>

#include "core/check.h"
#include "core/digest.h"
#include "core/outer_step.h"

namespace causeway::worker {
namespace {

using Kind = WorkPiece::Kind;

constexpr size_t kBlock = 4096;  // values whose float32 copies stay in the cache

void MoveFloats(Kind kind, float factor, std::span<const float> by, std::span<float> theta) {
  switch (kind) {
    case Kind::kRead:
    case Kind::kDigest:
    case Kind::kKeep: CHECK(false); break;
    case Kind::kWrite: std::ranges::copy(by, theta.begin()); break;
    case Kind::kMix: core::MixAnchor(factor, by, theta); break;
    case Kind::kAdd: core::Rebase(factor, by, theta); break;
  }
}

}  // namespace

void MoveTheta(Kind kind, float factor, core::DType dtype, std::span<float> values, void* theta) {
  if (kind == Kind::kRead) return core::Load(dtype, theta, values);
  if (dtype == core::DType::kFloat32) {
    return MoveFloats(kind, factor, values, {static_cast<float*>(theta), values.size()});
  }
  float wide[kBlock], theta_before[kBlock];
  for (size_t begin = 0; begin < values.size(); begin += kBlock) {
    const std::span block(wide, std::min(kBlock, values.size() - begin));
    const std::span before(theta_before, block.size());
    std::byte* const place = static_cast<std::byte*>(theta) + begin * core::BytesOf(dtype);
    const std::span by = values.subspan(begin, block.size());
    core::Load(dtype, place, block);
    MoveFloats(kind, factor, by, block);
    if (kind == Kind::kMix && dtype == core::DType::kBfloat16) {
      core::Load(dtype, place, before);
      core::RoundMix(by, before, block);
    }
    core::Store(dtype, block, place);
  }
}

uint64_t DigestTheta(uint64_t seed, core::DType dtype, const ThetaBlock& block, const void* theta) {
  const std::byte* place = static_cast<const std::byte*>(theta);
  uint64_t sum = 0;
  float wide[kBlock];
  for (int64_t row = 0; row < block.rows; ++row) {
    for (int64_t begin = 0; begin < block.columns; begin += kBlock) {
      const std::span values(wide, std::min<size_t>(kBlock, block.columns - begin));
      core::Load(dtype, place, values);
      place += values.size() * core::BytesOf(dtype);
      sum += core::ThetaDigest(seed, block.first + row * block.stride + begin, values);
    }
  }
  return sum;
}

}  // namespace causeway::worker
