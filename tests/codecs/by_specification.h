// docs/wire_format.md, section "Codecs", written a second time and otherwise than in codecs/: value by value, bit by
// bit, slowly. Whatever the two disagree on, one of them, or the page, is wrong.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "codecs/rotation.h"
#include "core/codec_id.h"

namespace causeway::codecs {

struct Specified {
  std::vector<uint8_t> scales, codes;
  std::vector<float> decoded;  // in the codec's domain, as many as `d`
};

// `d` is what is encoded, in the codec's domain: whole blocks if it rotates.
Specified BySpecification(core::CodecId id, std::span<const float> d, float gain);

// Whole blocks: what is missing to the last one is +0.
std::vector<float> RotatedBySpecification(const Rotation& rotation, std::span<const float> values);
std::vector<float> RotatedBackBySpecification(const Rotation& rotation, std::span<const float> values);

// The nearest bfloat16, of two that are equally near the even one; the one before `limit` where that is `limit`.
float NearestBfloat16(float value, float limit = 0x1p100f);

}  // namespace causeway::codecs
