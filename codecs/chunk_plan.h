// The chunks in which a fragment travels: both ends derive them without communication.
//
//   fragment   |wq: 3.1 units …        |norm  |embedding …            |    tensors, each on a new unit
//   chunks     |rotated_sign |…        |bf16  |rotated_sign |…        |    runs of whole units, at most 1 MiB encoded
//
// The codec may differ by tensor: kinds that are exempt stay at bfloat16. Source: docs/wire_format.md. Thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/codec_id.h"
#include "core/fragment_map.h"
#include "core/outer_step.h"

namespace causeway::core {
struct RunConfig;
}

namespace causeway::codecs {

// The part of its fragment that a chunk covers. Values beyond `values` up to the next unit are padding and stay zero.
struct ChunkSpan {
  core::CodecId codec = core::CodecId::kFloat32;
  int64_t first_unit = 0;
  int64_t values = 0;
  uint64_t rotation_seed = 0;  // 0 where the codec does not rotate

  int64_t units() const { return core::UnitsFor(values); }
  int64_t first_value() const { return first_unit * core::kUnitValues; }  // index in the fragment's padded array
  friend bool operator==(const ChunkSpan&, const ChunkSpan&) = default;
};

std::string Describe(const ChunkSpan& span);  // "int4, 5000 values from unit 3"

// The encoding of one leg of a run.
struct LegCodec {
  core::CodecId codec = core::CodecId::kFloat32;
  std::vector<core::TensorKind> exempt;  // these kinds are bfloat16
  uint64_t run_seed = 0;                 // the source of the rotation's signs

  core::CodecId CodecOf(const core::TensorPlace& tensor) const;
  // The outer parameters of the tensor of that unit: exempt tensors lack the codec's gain, and a buffer takes the mean.
  core::OuterParameters OuterAt(const core::Fragment& fragment, int64_t unit, core::OuterParameters outer) const;
  LegCodec With(core::CodecId chosen) const { return {chosen, exempt, run_seed}; }  // for a round with this codec
};

LegCodec UpLeg(const core::RunConfig& config);  // with codec `auto`: the leg of version 0
LegCodec DownLeg(const core::RunConfig& config);
LegCodec Unencoded();  // float32: initial parameters and anchors

// The chunks of a fragment, in unit order; they depend only on the map. Each has as many whole units of one tensor as
// fit core::kMaxChunkBytes.
std::vector<ChunkSpan> PlanChunks(const core::Fragment& fragment, const LegCodec& leg);

int64_t ChunkBytes(core::CodecId codec, int64_t values);
int64_t EncodedBytes(const core::Fragment& fragment, const LegCodec& leg);  // bytes of all chunks

}  // namespace causeway::codecs
