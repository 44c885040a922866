#include "codecs/block_codec.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "core/multiversion.h"

namespace causeway::codecs {
namespace {

using BlockBuffer = std::array<float, core::kBlockValues>;

CAUSEWAY_MULTIVERSION
void AddWeighted(float weight, const float* values, size_t count, float* sum) {
  for (size_t i = 0; i < count; ++i) sum[i] = std::fma(weight, values[i], sum[i]);
}

// Block b's share of a span that ends with a partial block.
template <typename T>
std::span<T> BlockOf(std::span<T> values, int64_t b) {
  const size_t begin = b * core::kBlockValues;
  return values.subspan(begin, std::min<size_t>(core::kBlockValues, values.size() - begin));
}

}  // namespace

void BlockCodec::Encode(std::span<const float> values, float gain, uint8_t* scales, uint8_t* codes) const {
  for (int64_t b = 0; b < core::BlocksFor(values.size()); ++b) {
    const std::span<const float> block = BlockOf(values, b);
    BlockBuffer padded;
    const auto end = std::copy(block.begin(), block.end(), padded.begin());
    std::fill(end, padded.end(), 0.0f);
    EncodeBlock(padded, block.size(), gain, scales + b * scale_bytes(), codes + b * code_bytes());
  }
}

void BlockCodec::Decode(const uint8_t* scales, const uint8_t* codes, std::span<float> values) const {
  for (int64_t b = 0; b < core::BlocksFor(values.size()); ++b) {
    const std::span<float> block = BlockOf(values, b);
    BlockBuffer decoded;
    DecodeBlock(scales + b * scale_bytes(), codes + b * code_bytes(), decoded);
    std::copy_n(decoded.begin(), block.size(), block.begin());
  }
}

void BlockCodec::DecodeAdd(const uint8_t* scales, const uint8_t* codes, float weight, std::span<float> sum) const {
  for (int64_t b = 0; b < core::BlocksFor(sum.size()); ++b) {
    const std::span<float> block = BlockOf(sum, b);
    BlockBuffer decoded;
    DecodeBlock(scales + b * scale_bytes(), codes + b * code_bytes(), decoded);
    AddWeighted(weight, decoded.data(), block.size(), block.data());
  }
}

absl::Status BlockCodec::Validate(const uint8_t* scales, const uint8_t* codes, int64_t values) const {
  for (int64_t b = 0; b < core::BlocksFor(values); ++b) {
    const int64_t valid = std::min(core::kBlockValues, values - b * core::kBlockValues);
    const absl::Status status = ValidateBlock(scales + b * scale_bytes(), codes + b * code_bytes(), valid);
    if (!status.ok()) return absl::InvalidArgumentError(absl::StrCat("block ", b, ": ", status.message()));
  }
  return absl::OkStatus();
}

}  // namespace causeway::codecs
