#include "codecs/topk_select.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>

#include "codecs/topk_format.h"
#include "core/check.h"
#include "core/multiversion.h"

namespace causeway::codecs {
namespace {

constexpr int kGroupsPerEntry = 4;
constexpr int32_t kMagnitudeBits = 0x7fffffff;

// As bits, which are ordered as magnitudes are.
using Magnitudes = std::array<int32_t, core::kUnitValues>;

// Group g has the values g, g + groups, g + 2 · groups and so on. `largest` has one of each.
CAUSEWAY_MULTIVERSION
void LargestOfGroups(const float* d, int64_t groups, int32_t* magnitudes, int32_t* largest) {
  for (int64_t i = 0; i < core::kUnitValues; ++i) magnitudes[i] = std::bit_cast<int32_t>(d[i]) & kMagnitudeBits;
  std::copy_n(magnitudes, groups, largest);
  for (int64_t row = groups; row < core::kUnitValues; row += groups) {
    for (int64_t g = 0; g < groups; ++g) largest[g] = std::max(largest[g], magnitudes[row + g]);
  }
}

CAUSEWAY_MULTIVERSION
int CountAtLeast(const int32_t* values, int64_t count, int32_t bound) {
  int found = 0;
  for (int64_t i = 0; i < count; ++i) found += values[i] >= bound ? 1 : 0;
  return found;
}

// The n-th largest: bit by bit, the largest number that n values reach.
int32_t NthLargest(const int32_t* values, int64_t count, int n) {
  int32_t bound = 0;
  for (int32_t bit = 1 << 30; bit != 0; bit /= 2) {
    if (CountAtLeast(values, count, bound | bit) >= n) bound |= bit;
  }
  return bound;
}

}  // namespace

std::vector<int> SelectReference(std::span<const float> d, int entries) {
  std::vector<int> indices;
  for (size_t i = 0; i < d.size(); ++i) {
    if (d[i] != 0) indices.push_back(static_cast<int>(i));
  }
  if (std::ssize(indices) > entries) {
    const auto larger = [&](int a, int b) {
      const float x = std::abs(d[a]), y = std::abs(d[b]);
      return x != y ? x > y : a < b;
    };
    std::nth_element(indices.begin(), indices.begin() + entries, indices.end(), larger);
    indices.resize(entries);
  }
  std::sort(indices.begin(), indices.end());
  return indices;
}

std::vector<int> SelectByGroups(std::span<const float> d, int entries) {
  const int64_t groups = int64_t{kGroupsPerEntry} * entries;
  CHECK(core::kUnitValues % groups == 0 && std::ssize(d) <= core::kUnitValues);
  std::array<float, core::kUnitValues> padded;  // with zeros, which are never kept
  const float* whole = d.data();
  if (std::ssize(d) < core::kUnitValues) {
    std::fill(std::ranges::copy(d, padded.begin()).out, padded.end(), 0.0f);
    whole = padded.data();
  }
  Magnitudes magnitudes, largest;
  LargestOfGroups(whole, groups, magnitudes.data(), largest.data());
  const int32_t bound = std::max(NthLargest(largest.data(), groups, entries), 1);

  // Candidates as numbers that are ordered as they are to be chosen.
  constexpr uint64_t kLastIndex = core::kUnitValues - 1;
  std::vector<uint64_t> candidates;
  candidates.reserve(2 * entries);
  for (int64_t g = 0; g < groups; ++g) {
    if (largest[g] < bound) continue;
    for (int64_t i = g; i < core::kUnitValues; i += groups) {
      if (magnitudes[i] >= bound)
        candidates.push_back(static_cast<uint64_t>(magnitudes[i]) << kTopkIndexBits | (kLastIndex - i));
    }
  }
  if (std::ssize(candidates) > entries) {
    std::nth_element(candidates.begin(), candidates.begin() + entries, candidates.end(), std::greater<>());
    candidates.resize(entries);
  }
  std::array<uint64_t, core::kUnitValues / 64> chosen = {};  // a bit a value: this sorts them
  for (const uint64_t candidate : candidates) {
    const uint64_t i = kLastIndex - (candidate & kLastIndex);
    chosen[i / 64] |= uint64_t{1} << i % 64;
  }
  std::vector<int> indices;
  indices.reserve(candidates.size());
  for (size_t word = 0; word < chosen.size(); ++word) {
    for (uint64_t left = chosen[word]; left != 0; left &= left - 1) {
      indices.push_back(static_cast<int>(word * 64) + std::countr_zero(left));
    }
  }
  return indices;
}

}  // namespace causeway::codecs
