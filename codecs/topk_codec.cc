// topk and its family: the k largest of each unit, 12 bits for the place and 2 for the value (SparseLoCo, arXiv
// 2508.15706).
//
//   unit   |··x·····x···xx··| ─► indices |i₀ < i₁ < … | k · 12 bits, codes |sign, level| k · 2 bits, one bf16 scale
//
// The list ends where an index does not rise. Sparse updates need error feedback: most of a unit is dropped each time.
// Decoding, adding and checking take time by the entries. Encoding takes it by the values, most of it for choosing the
// largest (codecs/topk_select.h), of which the targets have versions; the rest is one text. Source:
// docs/wire_format.md.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "codecs/block_math.h"
#include "codecs/encode_input.h"
#include "codecs/other_codecs.h"
#include "codecs/scale.h"
#include "codecs/topk_format.h"
#include "codecs/topk_select.h"
#include "core/check.h"

namespace causeway::codecs {
namespace {

static_assert(std::endian::native == std::endian::little, "indices are two of 12 bits in three bytes");

float Level(bool high) { return high ? kTopkHighLevel : kTopkLowLevel; }

struct Entry {
  int index;
  bool negative;
  bool high;
};

// The entries of one unit, as they lie in its code bytes.
class Entries {
 public:
  Entries(const uint8_t* codes, int size) : codes_(codes), size_(size) {}

  Entry At(int i) const {
    uint16_t bits;  // the index and 4 bits of its neighbour
    std::memcpy(&bits, codes_ + 3 * i / 2, sizeof(bits));
    const int code = codes_[TopkIndexBytes(size_) + i / 4] >> 2 * (i % 4);
    return {i % 2 == 0 ? bits & kIndexMask : bits >> 4, (code & 1) != 0, (code & 2) != 0};
  }

  // How many there are: until an index does not rise. Without a scale there are none.
  int Count(float scale) const {
    if (scale == 0) return 0;
    int count = 1;
    while (count < size_ && At(count).index > At(count - 1).index) ++count;
    return count;
  }

  // visit(index, value) for each.
  template <typename Visit>
  void ForEach(const uint8_t* scale, Visit visit) const {
    const float stored = LoadScale(scale);
    if (stored == 0) return;
    int last = -1;
    for (int i = 0; i < size_; ++i) {
      const Entry entry = At(i);
      if (entry.index <= last) return;
      last = entry.index;
      visit(entry.index, WithSign(Level(entry.high) * stored, entry.negative));
    }
  }

 private:
  static constexpr int kIndexMask = (1 << kTopkIndexBits) - 1;
  const uint8_t* codes_;
  int size_;
};

void WriteEntry(int i, const Entry& entry, int size, uint8_t* codes) {
  const int shifted = i % 2 == 0 ? entry.index : entry.index << 4;
  codes[3 * i / 2] |= static_cast<uint8_t>(shifted);
  codes[3 * i / 2 + 1] |= static_cast<uint8_t>(shifted >> 8);
  const int code = (entry.negative ? 1 : 0) | (entry.high ? 2 : 0);
  codes[TopkIndexBytes(size) + i / 4] |= static_cast<uint8_t>(code << 2 * (i % 4));
}

void EncodeUnit(std::span<const float> d, const std::vector<int>& indices, int size, uint8_t* scale, uint8_t* codes) {
  std::fill_n(codes, TopkCodeBytes(size), uint8_t{0});
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
    WriteEntry(static_cast<int>(k), {indices[k], SignBit(x), std::abs(x) >= mean}, size, codes);
  }
}

absl::Status ValidateUnit(const uint8_t* scale, const Entries& entries, int size, int64_t valid) {
  const float stored = LoadScale(scale);
  RETURN_IF_ERROR(ValidateScale(stored, kTopkScaleLimit));
  const int count = entries.Count(stored);
  if (count > 0 && entries.At(count - 1).index >= valid) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected indices below ", valid, ", got ", entries.At(count - 1).index, " in entry ", count - 1));
  }
  for (int i = count; i < size; ++i) {
    const Entry entry = entries.At(i);
    if (entry.index == 0 && !entry.negative && !entry.high) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("expected zeros after its ", count, " entries, got index ", entry.index, " in entry ", i));
  }
  return absl::OkStatus();
}

class TopkCodec final : public Codec {
 public:
  TopkCodec(int entries, TopkSelect select) : entries_(entries), select_(select) {}

  int64_t ScaleBytes(int64_t values) const override { return core::UnitsFor(values) * kScaleBytes; }
  int64_t CodeBytes(int64_t values) const override { return core::UnitsFor(values) * TopkCodeBytes(entries_); }
  int64_t ScaleOffset(int64_t unit) const override { return unit * kScaleBytes; }
  int64_t CodeOffset(int64_t unit) const override { return unit * TopkCodeBytes(entries_); }

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
      EncodeUnit(d, select_(d, entries_), entries_, scale, codes);
      if (job.next_residual == nullptr) continue;
      std::copy_n(d.begin(), count, job.next_residual + begin);
      EntriesOf(job.codes, unit).ForEach(scale, [&](int index, float value) {
        job.next_residual[begin + index] -= value;
      });
    }
    return true;
  }

  void Decode(const DecodeJob& job) const override {
    if (!job.add) std::fill_n(job.values, job.count, 0.0f);
    for (int64_t unit = 0; unit < core::UnitsFor(job.count); ++unit) {
      float* values = job.values + unit * core::kUnitValues;
      const int64_t wanted = job.count - unit * core::kUnitValues;  // of a unit that has more, maybe
      EntriesOf(job.codes, unit).ForEach(job.scales + ScaleOffset(unit), [&](int index, float value) {
        if (index >= wanted) return;
        values[index] = job.add ? std::fma(*job.add, value, values[index]) : value;
      });
    }
  }

  double SumSquares(const uint8_t* scales, const uint8_t* codes, int64_t values) const override {
    double sum = 0;
    for (int64_t unit = 0; unit < core::UnitsFor(values); ++unit) {
      EntriesOf(codes, unit).ForEach(scales + ScaleOffset(unit), [&](int, float value) { sum += Square(value); });
    }
    return sum;
  }

  absl::Status Validate(const uint8_t* scales, const uint8_t* codes, int64_t values) const override {
    for (int64_t unit = 0; unit < core::UnitsFor(values); ++unit) {
      const int64_t valid = std::min(core::kUnitValues, values - unit * core::kUnitValues);
      const absl::Status status = ValidateUnit(scales + ScaleOffset(unit), EntriesOf(codes, unit), entries_, valid);
      if (!status.ok()) return absl::InvalidArgumentError(absl::StrCat("unit ", unit, ": ", status.message()));
    }
    return absl::OkStatus();
  }

 private:
  Entries EntriesOf(const uint8_t* codes, int64_t unit) const { return {codes + CodeOffset(unit), entries_}; }

  const int entries_;  // of a unit
  const TopkSelect select_;
};

}  // namespace

std::unique_ptr<Codec> MakeTopk(int entries, Target target) {
  return std::make_unique<TopkCodec>(entries, target == Target::kScalar ? SelectReference : SelectByGroups);
}

}  // namespace causeway::codecs
