// Functions that the scalar block codecs share: the sum whose order is part of the wire format, the largest magnitude,
// and the two ways of packing small codes (docs/wire_format.md, section "Codecs"). Pure, thread-safe.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "codecs/block_format.h"

namespace causeway::codecs {

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

// Exact: 24 bits squared are 48.
inline double Square(float value) { return static_cast<double>(value) * static_cast<double>(value); }

// INVALID_ARGUMENT if a bit of the plane is set at or beyond `valid`.
absl::Status ValidatePlanePadding(const uint8_t* plane, int64_t valid);

}  // namespace causeway::codecs
