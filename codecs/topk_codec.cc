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
#include <iterator>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "codecs/block_format.h"
#include "codecs/codec.h"
#include "codecs/encode_input.h"
#include "codecs/scale.h"
#include "codecs/topk_select.h"
#include "core/check.h"
#include "core/multiversion.h"

namespace causeway::codecs {
namespace {

static_assert(std::endian::native == std::endian::little, "indices are two of 12 bits in three bytes");

constexpr int kMostEntries = core::TopkEntries(*std::rbegin(core::kTopkCodecs));
constexpr int64_t kUnitsAhead = 4;  // a tile of a merge
constexpr int kPrefetchBytes = 64;
constexpr float kLevels[] = {kTopkLowLevel, kTopkHighLevel};

struct Decoded {
  std::array<int32_t, kMostEntries> indices;
  std::array<float, kMostEntries> values;
  int count = 0;
};

// The entries of one unit, as they lie in its code bytes.
class Entries {
 public:
  Entries(const uint8_t* codes, int size) : codes_(codes), size_(size) {}

  int IndexAt(int i) const {
    uint16_t bits;  // the index and 4 bits of its neighbour
    std::memcpy(&bits, codes_ + 3 * i / 2, sizeof(bits));
    return i % 2 == 0 ? bits & kIndexMask : bits >> 4;
  }
  // Bit 0: negative, bit 1: the high level.
  int CodeAt(int i) const { return codes_[TopkIndexBytes(size_) + i / 4] >> 2 * (i % 4) & 3; }

  int Count(float scale) const {
    return Rising(scale, [this](int i) { return IndexAt(i); });
  }

  // Those with an index below `end`.
  void Decode(const uint8_t* scale, int64_t end, Decoded& decoded) const {
    const float stored = LoadScale(scale);
    const float low = kTopkLowLevel * stored, high = kTopkHighLevel * stored;
    const std::array<float, 4> values = {low, -low, high, -high};
    for (int four = 0; four < size_ / 4; ++four) {
      uint64_t bits;  // four indices, and 16 bits of what follows
      std::memcpy(&bits, codes_ + 6 * four, sizeof(bits));
      const uint8_t codes = codes_[TopkIndexBytes(size_) + four];
      for (int i = 0; i < 4; ++i) {
        decoded.indices[4 * four + i] = static_cast<int32_t>(bits >> kTopkIndexBits * i & kIndexMask);
        decoded.values[4 * four + i] = values[codes >> 2 * i & 3];
      }
    }
    decoded.count = Rising(stored, [&](int i) { return decoded.indices[i]; });
    while (decoded.count > 0 && decoded.indices[decoded.count - 1] >= end) --decoded.count;
  }

 private:
  // How many there are: until an index does not rise. Without a scale there are none.
  template <typename IndexOf>
  int Rising(float scale, IndexOf index) const {
    if (scale == 0) return 0;
    int count = 1;
    while (count < size_ && index(count) > index(count - 1)) ++count;
    return count;
  }

  static constexpr int kIndexMask = (1 << kTopkIndexBits) - 1;
  const uint8_t* codes_;
  int size_;
};

void WriteEntry(int i, int index, int code, int size, uint8_t* codes) {
  const int shifted = i % 2 == 0 ? index : index << 4;
  codes[3 * i / 2] |= static_cast<uint8_t>(shifted);
  codes[3 * i / 2 + 1] |= static_cast<uint8_t>(shifted >> 8);
  codes[TopkIndexBytes(size) + i / 4] |= static_cast<uint8_t>(code << 2 * (i % 4));
}

CAUSEWAY_MULTIVERSION
void AddEntries(float weight, const Decoded& decoded, float* sum) {
  for (int i = 0; i < decoded.count; ++i) {
    float& value = sum[decoded.indices[i]];
    value = std::fma(weight, decoded.values[i], value);
  }
}

// The scale that fits the entries best: least squares. `high` where a magnitude has the high level.
CAUSEWAY_MULTIVERSION
float FitScale(const float* magnitudes, const uint8_t* high, size_t count) {
  float product = 0, norm = 0;
  for (size_t k = 0; k < count; ++k) {
    const float level = kLevels[high[k]];
    product = std::fma(magnitudes[k], level, product);
    norm = std::fma(level, level, norm);
  }
  return count == 0 ? 0 : product / norm;
}

void EncodeUnit(std::span<const float> d, const std::vector<int>& indices, int size, uint8_t* scale, uint8_t* codes) {
  std::fill_n(codes, TopkCodeBytes(size), uint8_t{0});
  std::array<float, kMostEntries> magnitudes;
  std::array<uint8_t, kMostEntries> high;
  float sum = 0;
  for (size_t k = 0; k < indices.size(); ++k) sum += magnitudes[k] = std::abs(d[indices[k]]);
  const float mean = sum / static_cast<float>(std::max<size_t>(indices.size(), 1));
  for (size_t k = 0; k < indices.size(); ++k) high[k] = magnitudes[k] >= mean ? 1 : 0;
  if (StoreScale(FitScale(magnitudes.data(), high.data(), indices.size()), scale, kTopkScaleLimit) == 0) return;
  for (size_t k = 0; k < indices.size(); ++k) {
    const int code = (SignBit(d[indices[k]]) ? 1 : 0) | high[k] << 1;
    WriteEntry(static_cast<int>(k), indices[k], code, size, codes);
  }
}

absl::Status ValidateUnit(const uint8_t* scale, const Entries& entries, int size, int64_t valid) {
  const float stored = LoadScale(scale);
  RETURN_IF_ERROR(ValidateScale(stored, kTopkScaleLimit));
  const int count = entries.Count(stored);
  if (count > 0 && entries.IndexAt(count - 1) >= valid) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected indices below ", valid, ", got ", entries.IndexAt(count - 1), " in entry ", count - 1));
  }
  for (int i = count; i < size; ++i) {
    if (entries.IndexAt(i) == 0 && entries.CodeAt(i) == 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("expected zeros after its ", count, " entries, got index ", entries.IndexAt(i), " in entry ", i));
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
      Decoded decoded;
      EntriesOf(job.codes, unit).Decode(scale, count, decoded);
      AddEntries(-1, decoded, job.next_residual + begin);
    }
    return true;
  }

  void Decode(const DecodeJob& job) const override {
    if (!job.add) std::fill_n(job.values, job.count, 0.0f);
    Decoded decoded;
    for (int64_t unit = 0; unit < core::UnitsFor(job.count); ++unit) {
      // The unit may have more.
      const int64_t wanted = job.count - unit * core::kUnitValues;
      Prefetch(job.codes, unit + kUnitsAhead);
      EntriesOf(job.codes, unit).Decode(job.scales + ScaleOffset(unit), wanted, decoded);
      AddEntries(job.add.value_or(1), decoded, job.values + unit * core::kUnitValues);
    }
  }

  double SumSquares(const uint8_t* scales, const uint8_t* codes, int64_t values) const override {
    double sum = 0;
    Decoded decoded;
    for (int64_t unit = 0; unit < core::UnitsFor(values); ++unit) {
      EntriesOf(codes, unit).Decode(scales + ScaleOffset(unit), core::kUnitValues, decoded);
      for (int i = 0; i < decoded.count; ++i) sum += Square(decoded.values[i]);
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
  // A merge takes a few units of each contribution in turn, too few for the processor to see where they go on. Beyond
  // the end it is no fault.
  void Prefetch(const uint8_t* codes, int64_t unit) const {
    for (int at = 0; at < TopkCodeBytes(entries_); at += kPrefetchBytes) {
      __builtin_prefetch(codes + CodeOffset(unit) + at);
    }
  }
  Entries EntriesOf(const uint8_t* codes, int64_t unit) const { return {codes + CodeOffset(unit), entries_}; }

  const int entries_;  // of a unit
  const TopkSelect select_;
};

}  // namespace

std::unique_ptr<Codec> MakeTopk(int entries, Target target) {
  return std::make_unique<TopkCodec>(entries, target == Target::kScalar ? SelectReference : SelectByGroups);
}

}  // namespace causeway::codecs
