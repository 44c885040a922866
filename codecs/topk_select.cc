#include "codecs/topk_select.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

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

// The values from `bound` on, in the order of their groups. Without branches on what the values are, which no processor
// could foresee.
struct Candidates {
  Magnitudes magnitudes;
  std::array<int16_t, core::kUnitValues> indices;
  int64_t count = 0;

  void Gather(const Magnitudes& all, const Magnitudes& largest, int64_t groups, int32_t bound) {
    std::array<int16_t, core::kUnitValues> reaching;
    int64_t num_reaching = 0;
    for (int64_t g = 0; g < groups; ++g) {
      reaching[num_reaching] = static_cast<int16_t>(g);
      num_reaching += largest[g] >= bound ? 1 : 0;
    }
    for (int64_t n = 0; n < num_reaching; ++n) {
      for (int64_t i = reaching[n]; i < core::kUnitValues; i += groups) {
        magnitudes[count] = all[i];
        indices[count] = static_cast<int16_t>(i);
        count += all[i] >= bound ? 1 : 0;
      }
    }
  }
};

// A bit a value, which sorts them.
class Places {
 public:
  void Add(int64_t i, bool is_one) { words_[i / 64] |= uint64_t{is_one} << i % 64; }

  void Append(int64_t most, std::vector<int>& indices) const {
    for (size_t word = 0; word < words_.size(); ++word) {
      for (uint64_t left = words_[word]; left != 0 && most > 0; left &= left - 1, --most) {
        indices.push_back(static_cast<int>(word * 64) + std::countr_zero(left));
      }
    }
  }
  void AddFirst(int64_t most, Places& to) const {
    std::vector<int> first;
    Append(most, first);
    for (const int i : first) to.Add(i, true);
  }

 private:
  std::array<uint64_t, core::kUnitValues / 64> words_ = {};
};

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
  Candidates candidates;
  candidates.Gather(magnitudes, largest, groups, std::max(NthLargest(largest.data(), groups, entries), 1));

  const bool all = candidates.count <= entries;
  const int32_t smallest = all ? 0 : NthLargest(candidates.magnitudes.data(), candidates.count, entries);
  Places kept, equal;  // equal: to the smallest that is kept
  int64_t larger = 0;
  for (int64_t n = 0; n < candidates.count; ++n) {
    larger += candidates.magnitudes[n] > smallest ? 1 : 0;
    kept.Add(candidates.indices[n], candidates.magnitudes[n] > smallest);
    equal.Add(candidates.indices[n], candidates.magnitudes[n] == smallest);
  }
  if (!all) equal.AddFirst(entries - larger, kept);
  std::vector<int> indices;
  indices.reserve(entries);
  kept.Append(entries, indices);
  return indices;
}

}  // namespace causeway::codecs
