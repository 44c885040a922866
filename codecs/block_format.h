// The parts of a block codec: sizes, the scalar code for one block, which is the specification, and faster loops over
// many blocks.
//
//   EncodeRun (whole blocks) ─► rotate ─► d = fma(β, e, x) ─► range ─► encode of one block ─► e ← d − decoded
//
// A run has only whole blocks: BlockCodec pads the last one. Pure, thread-safe.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
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
  Rotation rotation;  // used if `rotate`
  float beta = 0;
  const float* residual = nullptr;  // null without feedback; next_residual is null then, too
  float* next_residual = nullptr;
  float inverse_count = 1.0f / core::kBlockValues;  // 1 / the number of values in each block, without padding
  float gain = 1;
  bool saturate = false;
  uint8_t* scales = nullptr;
  uint8_t* codes = nullptr;
};

struct DecodeRun {
  int64_t blocks = 0;
  const uint8_t* scales = nullptr;
  const uint8_t* codes = nullptr;
  bool rotate = false;  // whether to rotate the decoded values back
  Rotation rotation;
  float* values = nullptr;
  bool add = false;
  float weight = 0;  // used if `add`
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
  int64_t scale_bytes;  // bytes of a block's scale
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

// Functions that the scalar block codecs share: the sum whose order is part of the wire format, the largest magnitude,
// and the two ways of packing small codes (docs/wire_format.md, section "Codecs"). Pure, thread-safe.

inline constexpr int kLanes = 16;
inline constexpr int kVectors = core::kBlockValues / kLanes;

// term(i, sum) is `sum` with the i-th term added. Lane l takes every 16th term, then halves are added on halves.
template <typename Number, typename Term>
inline Number SumOverBlock(Term term) {
  Number lanes[kLanes] = {};
  for (int v = 0; v < kVectors; ++v) {
    for (int l = 0; l < kLanes; ++l) lanes[l] = term(kLanes * v + l, lanes[l]);
  }
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  }
  return lanes[0];
}

// Magnitudes of floats have the order of their bits; a maximum of integers vectorizes without permission to reorder
// floats.
inline float LargestMagnitude(const float* values) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < core::kBlockValues; ++i) {
    const uint32_t magnitude = std::bit_cast<uint32_t>(values[i]) & 0x7fffffffu;
    largest = largest < magnitude ? magnitude : largest;
  }
  return std::bit_cast<float>(largest);
}

inline bool SignBit(float value) { return std::bit_cast<uint32_t>(value) >> 31 != 0; }
inline float WithSign(float magnitude, bool negative) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) ^ (static_cast<uint32_t>(negative) << 31));
}

// A plane of 256 bits, LSB-first.
inline constexpr int64_t kPlaneBytes = core::kBlockValues / 8;
inline bool PlaneBit(const uint8_t* plane, int64_t i) { return ((plane[i / 8] >> (i % 8)) & 1) != 0; }
template <typename Bit>
inline void WritePlane(uint8_t* plane, Bit bit) {
  for (int64_t byte = 0; byte < kPlaneBytes; ++byte) {
    uint32_t bits = 0;
    for (int k = 0; k < 8; ++k) bits |= static_cast<uint32_t>(bit(8 * byte + k)) << k;
    plane[byte] = static_cast<uint8_t>(bits);
  }
}

// 256 nibbles: two lines of 64 bytes for 128 values each; dword l, nibble v of a line is value 16 v + l.
inline constexpr int64_t kNibbleBytes = core::kBlockValues / 2;
inline constexpr int64_t kNibblesPerWord = 8;
inline constexpr int64_t kLineValues = kLanes * kNibblesPerWord;

template <typename Nibble>
inline void WriteNibbles(uint8_t* codes, Nibble nibble) {
  for (int64_t line = 0; line < core::kBlockValues; line += kLineValues) {
    uint32_t words[kLanes] = {};
    for (int v = 0; v < kNibblesPerWord; ++v) {
      for (int l = 0; l < kLanes; ++l) words[l] |= static_cast<uint32_t>(nibble(line + kLanes * v + l)) << (4 * v);
    }
    std::memcpy(codes + line / 2, words, sizeof(words));
  }
}

// visit(i, nibble) for each value.
template <typename Visit>
inline void ReadNibbles(const uint8_t* codes, Visit visit) {
  for (int64_t line = 0; line < core::kBlockValues; line += kLineValues) {
    uint32_t words[kLanes];
    std::memcpy(words, codes + line / 2, sizeof(words));
    for (int v = 0; v < kNibblesPerWord; ++v) {
      for (int l = 0; l < kLanes; ++l) visit(line + kLanes * v + l, (words[l] >> (4 * v)) & 15u);
    }
  }
}

// Σ squares[nibble & 7] over a block of nibbles, whose bit 3 is a sign. Counts vectorize, a table does not.
double SumOverMagnitudes(const uint8_t* codes, const double (&squares)[8]);

// Exact: the square of 24 bits has 48.
inline double Square(float value) { return static_cast<double>(value) * static_cast<double>(value); }

// INVALID_ARGUMENT if a bit of the plane is set at or beyond `valid`.
absl::Status ValidatePlanePadding(const uint8_t* plane, int64_t valid);

}  // namespace causeway::codecs
