// topk: the 64 largest of each unit, 12 bits for the place and 2 for the value (SparseLoCo, arXiv 2508.15706).
//
//   unit   |··x·····x···xx··| ─► indices |i₀ < i₁ < … | 64 · 12 bits, codes |sign, level| 64 · 2 bits, one bf16 scale
//
// The list ends where an index does not rise. Sparse updates need error feedback: most of a unit is dropped each time.
// One version for all processors: most of the time goes into choosing the largest. Source: docs/wire_format.md.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "codecs/block_math.h"
#include "codecs/encode_input.h"
#include "codecs/other_codecs.h"
#include "codecs/scale.h"
#include "codecs/topk_format.h"
#include "core/check.h"

namespace causeway::codecs {
namespace {

struct Entry {
  int index;
  bool negative;
  bool high;
};

// Bits in a byte array, LSB-first.
uint32_t ReadBits(const uint8_t* bytes, int64_t at, int count) {
  uint32_t bits = 0;
  for (int k = 0; k < count; ++k) bits |= static_cast<uint32_t>((bytes[(at + k) / 8] >> ((at + k) % 8)) & 1) << k;
  return bits;
}
void OrBits(uint8_t* bytes, int64_t at, int count, uint32_t bits) {
  for (int k = 0; k < count; ++k) bytes[(at + k) / 8] |= static_cast<uint8_t>(((bits >> k) & 1) << ((at + k) % 8));
}

Entry EntryAt(const uint8_t* codes, int i) {
  const uint32_t code = ReadBits(codes + kTopkIndexBytes, 2 * i, 2);
  return {static_cast<int>(ReadBits(codes, i * kTopkIndexBits, kTopkIndexBits)), (code & 1) != 0, (code & 2) != 0};
}

// How many entries a unit has: until an index does not rise. Without a scale it has none.
int CountEntries(float scale, const uint8_t* codes) {
  if (scale == 0) return 0;
  int count = 1;
  while (count < kTopkEntries && EntryAt(codes, count).index > EntryAt(codes, count - 1).index) ++count;
  return count;
}

float Level(bool high) { return high ? kTopkHighLevel : kTopkLowLevel; }

// Indices of the largest magnitudes, ascending; zeros never, of equal ones those that come first.
std::vector<int> LargestOf(std::span<const float> d) {
  std::vector<int> indices;
  for (size_t i = 0; i < d.size(); ++i) {
    if (d[i] != 0) indices.push_back(static_cast<int>(i));
  }
  if (indices.size() > kTopkEntries) {
    const auto larger = [&](int a, int b) {
      const float x = std::abs(d[a]), y = std::abs(d[b]);
      return x != y ? x > y : a < b;
    };
    std::nth_element(indices.begin(), indices.begin() + kTopkEntries, indices.end(), larger);
    indices.resize(kTopkEntries);
  }
  std::sort(indices.begin(), indices.end());
  return indices;
}

void EncodeUnit(std::span<const float> d, uint8_t* scale, uint8_t* codes) {
  std::fill_n(codes, kTopkCodeBytes, uint8_t{0});
  const std::vector<int> indices = LargestOf(d);
  float sum = 0;
  for (int i : indices) sum += std::abs(d[i]);
  const float mean = sum / static_cast<float>(std::max<size_t>(indices.size(), 1));
  float product = 0, norm = 0;
  for (int i : indices) {
    const float c = Level(std::abs(d[i]) >= mean);
    product = std::fma(std::abs(d[i]), c, product);
    norm = std::fma(c, c, norm);
  }
  if (StoreScale(indices.empty() ? 0.0f : product / norm, scale, kTopkScaleLimit) == 0) return;
  for (size_t k = 0; k < indices.size(); ++k) {
    const float x = d[indices[k]];
    OrBits(codes, k * kTopkIndexBits, kTopkIndexBits, indices[k]);
    OrBits(codes + kTopkIndexBytes, 2 * k, 2, (SignBit(x) ? 1 : 0) | (std::abs(x) >= mean ? 2 : 0));
  }
}

// visit(index, value) for each entry.
template <typename Visit>
void ForEachEntry(const uint8_t* scale, const uint8_t* codes, Visit visit) {
  const float stored = LoadScale(scale);
  const int count = CountEntries(stored, codes);
  for (int i = 0; i < count; ++i) {
    const Entry entry = EntryAt(codes, i);
    visit(entry.index, WithSign(Level(entry.high) * stored, entry.negative));
  }
}

absl::Status ValidateUnit(const uint8_t* scale, const uint8_t* codes, int64_t valid) {
  const float stored = LoadScale(scale);
  RETURN_IF_ERROR(ValidateScale(stored, kTopkScaleLimit));
  const int count = CountEntries(stored, codes);
  if (count > 0 && EntryAt(codes, count - 1).index >= valid) {
    return absl::InvalidArgumentError(absl::StrCat("expected indices below ", valid, ", got ",
                                                   EntryAt(codes, count - 1).index, " in entry ", count - 1));
  }
  for (int i = count; i < kTopkEntries; ++i) {
    const Entry entry = EntryAt(codes, i);
    if (entry.index == 0 && !entry.negative && !entry.high) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("expected zeros after its ", count, " entries, got index ", entry.index, " in entry ", i));
  }
  return absl::OkStatus();
}

class TopkCodec final : public Codec {
 public:
  int64_t ScaleBytes(int64_t values) const override { return core::UnitsFor(values) * kScaleBytes; }
  int64_t CodeBytes(int64_t values) const override { return core::UnitsFor(values) * kTopkCodeBytes; }
  int64_t ScaleOffset(int64_t unit) const override { return unit * kScaleBytes; }
  int64_t CodeOffset(int64_t unit) const override { return unit * kTopkCodeBytes; }

  bool Encode(const EncodeJob& job) const override {
    for (int64_t begin = 0; begin < job.count; begin += core::kUnitValues) {
      std::array<float, core::kUnitValues> buffer;
      const int64_t count = std::min(core::kUnitValues, job.count - begin);
      const std::span<float> d(buffer.data(), count);
      const float* residual = job.residual == nullptr ? nullptr : job.residual + begin;
      AddFeedback(job.beta, residual, job.values + begin, count, d.data());
      if (!BringIntoRange(job.saturate, d)) return false;
      const int64_t unit = begin / core::kUnitValues;
      uint8_t* scale = job.scales + ScaleOffset(unit);
      uint8_t* codes = job.codes + CodeOffset(unit);
      EncodeUnit(d, scale, codes);
      if (job.next_residual == nullptr) continue;
      std::copy_n(d.begin(), count, job.next_residual + begin);
      ForEachEntry(scale, codes, [&](int index, float value) { job.next_residual[begin + index] -= value; });
    }
    return true;
  }

  void Decode(const DecodeJob& job) const override {
    if (!job.add) std::fill_n(job.values, job.count, 0.0f);
    for (int64_t unit = 0; unit < core::UnitsFor(job.count); ++unit) {
      float* values = job.values + unit * core::kUnitValues;
      const int64_t wanted = job.count - unit * core::kUnitValues;  // of a unit that has more, maybe
      ForEachEntry(job.scales + ScaleOffset(unit), job.codes + CodeOffset(unit), [&](int index, float value) {
        if (index >= wanted) return;
        values[index] = job.add ? std::fma(*job.add, value, values[index]) : value;
      });
    }
  }

  double SumSquares(const uint8_t* scales, const uint8_t* codes, int64_t values) const override {
    double sum = 0;
    for (int64_t unit = 0; unit < core::UnitsFor(values); ++unit) {
      ForEachEntry(scales + ScaleOffset(unit), codes + CodeOffset(unit),
                   [&](int, float value) { sum += Square(value); });
    }
    return sum;
  }

  absl::Status Validate(const uint8_t* scales, const uint8_t* codes, int64_t values) const override {
    for (int64_t unit = 0; unit < core::UnitsFor(values); ++unit) {
      const int64_t valid = std::min(core::kUnitValues, values - unit * core::kUnitValues);
      const absl::Status status = ValidateUnit(scales + ScaleOffset(unit), codes + CodeOffset(unit), valid);
      if (!status.ok()) return absl::InvalidArgumentError(absl::StrCat("unit ", unit, ": ", status.message()));
    }
    return absl::OkStatus();
  }
};

}  // namespace

const Codec& Topk() {
  static const TopkCodec codec;
  return codec;
}

}  // namespace causeway::codecs
