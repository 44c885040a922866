// The format of topk's family, for its codecs and their kernel for GPUs (docs/wire_format.md, section "Codecs").
#pragma once

#include <cstdint>

#include "core/layout.h"
#include "core/limits.h"

namespace causeway::codecs {

// A unit has k entries (core::TopkEntries), each an index of 12 bits, and then for each a sign and a level.
inline constexpr int kTopkIndexBits = 12;
static_assert(1 << kTopkIndexBits == core::kUnitValues);
constexpr int TopkIndexBytes(int entries) { return entries * kTopkIndexBits / 8; }
constexpr int TopkCodeBytes(int entries) { return TopkIndexBytes(entries) + entries * 2 / 8; }
inline constexpr float kTopkLowLevel = 0.875f;
inline constexpr float kTopkHighLevel = 1.25f;
// 1.25 of a scale below it is below core::kMaxMagnitude.
inline constexpr int kTopkScaleExponent = 99;
inline constexpr float kTopkScaleLimit = core::kMaxMagnitude / 2;

}  // namespace causeway::codecs
