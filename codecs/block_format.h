// The parts of a block codec: sizes, the scalar code for one block, which is the specification, and faster loops over
// many blocks.
//
//   EncodeRun (whole blocks) ─► rotate ─► d = fma(β, e, x) ─► range ─► encode of one block ─► e ← d − decoded
//
// A run has only whole blocks: BlockCodec pads the last one. Pure, thread-safe.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "codecs/decode_term.h"
#include "codecs/rotation.h"
#include "core/codec_id.h"
#include "core/layout.h"

namespace causeway::codecs {

using ConstBlockSpan = std::span<const float, core::kBlockValues>;

// Meanings and rules as in EncodeJob and DecodeJob (codecs/codec.h).
struct EncodeRun {
  int64_t blocks = 0;
  const float* values = nullptr;
  bool rotate = false;
  Rotation rotation;  // if `rotate`
  float beta = 0;
  const float* residual = nullptr;  // null without feedback, as next_residual is
  float* next_residual = nullptr;
  float inverse_count = 1.0f / core::kBlockValues;  // the number of values in each block without padding
  float gain = 1;
  bool saturate = false;
  uint8_t* scales = nullptr;
  uint8_t* codes = nullptr;
};

struct DecodeRun {
  int64_t blocks = 0;
  const uint8_t* scales = nullptr;
  const uint8_t* codes = nullptr;
  bool rotate = false;  // back
  Rotation rotation;
  float* values = nullptr;
  bool add = false;
  float weight = 0;  // if `add`
};

// Σ of the terms in the codec's domain: fma(w_n, d_n, … fma(w_1, d_1, 0) …).
struct SumRun {
  int64_t blocks = 0;
  const DecodeTerm* terms = nullptr;
  int64_t num_terms = 0;
  float* sum = nullptr;
};

// Loops over the blocks of a run, in any order. `encode` is false if some block is out of range (Codec::Encode).
struct BlockLoops {
  bool (*encode)(const EncodeRun& run) = nullptr;
  void (*decode)(const DecodeRun& run) = nullptr;
  void (*sum)(const SumRun& run) = nullptr;
};

struct BlockFormat {
  core::CodecId id;
  int64_t scale_bytes;  // of a block
  int64_t code_bytes;
  bool rotates;

  // One block in the codec's domain. d is in range.
  void (*encode)(ConstBlockSpan d, float inverse_count, float gain, uint8_t* scale, uint8_t* codes);
  void (*decode)(const uint8_t* scale, const uint8_t* codes, BlockSpan values);
  // Whether `encode` could have written the block, with `valid` values before the padding (256 if the codec rotates).
  absl::Status (*validate)(const uint8_t* scale, const uint8_t* codes, int64_t valid);
  // As Codec::SumSquares, for a valid block.
  double (*sum_squares)(const uint8_t* scale, const uint8_t* codes, int64_t valid);
};

extern const BlockFormat kFloat32Format, kBfloat16Format, kInt8Format, kInt4Format, kE3m0Format, kSignFormat,
    kRotatedSignFormat, kRotatedLm2Format, kRotatedLm4Format;

// The specification's loops: block by block with the functions above.
bool EncodeReference(const BlockFormat& format, const EncodeRun& run);
void DecodeReference(const BlockFormat& format, const DecodeRun& run);
void SumReference(const BlockFormat& format, const SumRun& run);

}  // namespace causeway::codecs
