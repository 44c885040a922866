#include "codecs/chunk_plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "codecs/chunk_layout.h"
#include "codecs/codec.h"
#include "core/check.h"
#include "core/limits.h"
#include "core/run_config.h"

namespace causeway::codecs {
namespace {

// A fragment has several chunks, so that it can be spread over several connections, and finished parts can leave early;
// but none is so small that its header matters.
constexpr int64_t kShares = 8;
constexpr int64_t kLeastUnits = 16;

int64_t MaxUnitsPerChunk(core::CodecId codec) {
  int64_t units = 1, too_many = core::kMaxChunkBytes;  // no codec needs less than a byte for a unit
  while (too_many - units > 1) {
    const int64_t middle = (units + too_many) / 2;
    (ChunkBytes(codec, middle * core::kUnitValues) <= core::kMaxChunkBytes ? units : too_many) = middle;
  }
  return units;
}

}  // namespace

std::string Describe(const ChunkSpan& span) {
  const std::string rotation = span.rotation_seed == 0 ? "" : absl::StrCat(", rotation seed ", span.rotation_seed);
  return absl::StrCat(core::CodecName(span.codec), ", ", span.values, " values from unit ", span.first_unit, rotation);
}

core::CodecId LegCodec::CodecOf(const core::TensorPlace& tensor) const {
  return std::ranges::find(exempt, tensor.kind) == exempt.end() ? codec : core::CodecId::kBfloat16;
}

core::OuterParameters LegCodec::OuterAt(const core::Fragment& fragment, int64_t unit,
                                        core::OuterParameters outer) const {
  const auto next = std::ranges::upper_bound(fragment.tensors, unit, {}, &core::TensorPlace::first_unit);
  CHECK(next != fragment.tensors.begin());
  const core::TensorKind kind = std::prev(next)->kind;
  if (kind == core::TensorKind::kBuffer) return {.lr = 1, .momentum = 0, .gain = 1};
  if (std::ranges::count(exempt, kind) > 0) outer.gain = 1;
  return outer;
}

LegCodec UpLeg(const core::RunConfig& config) { return {config.codec.up, config.codec.exempt, config.seed}; }
LegCodec DownLeg(const core::RunConfig& config) { return {config.codec.down, config.codec.exempt, config.seed}; }
LegCodec Unencoded() { return {}; }

std::vector<ChunkSpan> PlanChunks(const core::Fragment& fragment, const LegCodec& leg) {
  std::vector<ChunkSpan> chunks;
  const int64_t share = std::max(kLeastUnits, (fragment.units + kShares - 1) / kShares);
  for (const core::TensorPlace& tensor : fragment.tensors) {
    const core::CodecId codec = leg.CodecOf(tensor);
    const uint64_t seed = GetCodec(codec).rotates() ? RotationSeed(leg.run_seed, fragment.id) : 0;
    const int64_t most = MaxUnitsPerChunk(codec);
    const int64_t most_units = codec == core::CodecId::kOnebitAdamSign ? most : std::min(most, share);
    for (int64_t unit = 0; unit < tensor.units(); unit += most_units) {
      const int64_t values = std::min(most_units * core::kUnitValues, tensor.values - unit * core::kUnitValues);
      chunks.push_back({codec, tensor.first_unit + unit, values, seed});
    }
  }
  return chunks;
}

int64_t ChunkBytes(core::CodecId codec, int64_t values) { return ChunkLayout(codec, values).size; }

int64_t EncodedBytes(const core::Fragment& fragment, const LegCodec& leg) {
  int64_t bytes = 0;
  for (const ChunkSpan& chunk : PlanChunks(fragment, leg)) bytes += ChunkBytes(chunk.codec, chunk.values);
  return bytes;
}

}  // namespace causeway::codecs
