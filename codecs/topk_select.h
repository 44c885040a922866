// Which values of a unit topk keeps: the `entries` largest magnitudes, zeros never, and of equal ones those that come
// first. Pure, thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace causeway::codecs {

// Indices into `d`, at most core::kUnitValues finite values, ascending.
using TopkSelect = std::vector<int> (*)(std::span<const float> d, int entries);

// By partial sort.
std::vector<int> SelectReference(std::span<const float> d, int entries);

// The same indices, by a bound on the smallest of them: of 4 · entries groups of values, `entries` groups have a value
// at or above the `entries`-th largest of the groups' largest, so nothing below it is kept. Few values are not below.
std::vector<int> SelectByGroups(std::span<const float> d, int entries);

}  // namespace causeway::codecs
