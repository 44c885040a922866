// The format of topk, for its codec and its kernel for GPUs (docs/wire_format.md, section "Codecs").
#pragma once

#include <cstdint>

#include "core/layout.h"
#include "core/limits.h"

namespace causeway::codecs {

// A unit has 64 entries, each an index of 12 bits, and then for each a sign and a level.
inline constexpr int kTopkEntries = 64;
inline constexpr int kTopkIndexBits = 12;
static_assert(1 << kTopkIndexBits == core::kUnitValues);
inline constexpr int kTopkIndexBytes = kTopkEntries * kTopkIndexBits / 8;
inline constexpr int kTopkCodeBytes = kTopkIndexBytes + kTopkEntries * 2 / 8;
inline constexpr float kTopkLowLevel = 0.875f;
inline constexpr float kTopkHighLevel = 1.25f;
// 1.25 of a scale below it is below core::kMaxMagnitude.
inline constexpr int kTopkScaleExponent = 99;
inline constexpr float kTopkScaleLimit = core::kMaxMagnitude / 2;

}  // namespace causeway::codecs
