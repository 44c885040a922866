// Which values of a unit topk keeps: the `entries` largest magnitudes, zeros never, and of equal ones those that come
// first. Pure, thread-safe.
#pragma once

#include <span>
#include <vector>

#include "core/layout.h"
#include "core/limits.h"

namespace causeway::codecs {

// The format of topk's family, for its codecs and their kernel for GPUs (docs/wire_format.md, section "Codecs").

// A unit has k entries (core::TopkEntries), each an index of 12 bits, and then for each a sign and a level.
inline constexpr int kTopkIndexBits = 12;
static_assert(1 << kTopkIndexBits == core::kUnitValues);
constexpr int TopkIndexBytes(int entries) { return entries * kTopkIndexBits / 8; }
constexpr int TopkCodeBytes(int entries) { return TopkIndexBytes(entries) + entries * 2 / 8; }
inline constexpr float kTopkLowLevel = 0.875f;
inline constexpr float kTopkHighLevel = 1.25f;
// 1.25 times a scale below this limit is below core::kMaxMagnitude.
inline constexpr int kTopkScaleExponent = 99;
inline constexpr float kTopkScaleLimit = core::kMaxMagnitude / 2;

// Returns indices into `d`, ascending; `d` has at most core::kUnitValues values, all finite.
using TopkSelect = std::vector<int> (*)(std::span<const float> d, int entries);

// Selects by a partial sort.
std::vector<int> SelectReference(std::span<const float> d, int entries);

// The same indices, by a bound on the smallest of them: of 4 · entries groups of values, `entries` groups have a value
// at or above the `entries`-th largest of the groups' largest, so nothing below it is kept. Few values reach it.
std::vector<int> SelectByGroups(std::span<const float> d, int entries);

}  // namespace causeway::codecs
