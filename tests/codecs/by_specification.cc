#include "tests/codecs/by_specification.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>

namespace causeway::codecs {
namespace {

using core::CodecId;

constexpr size_t kBlock = 256;
constexpr size_t kUnit = 4096;

// Lane l of 16 takes every 16th term in turn; then halves are added on halves.
template <typename Number>
Number SumInOrder(size_t count, const std::function<Number(size_t, Number)>& add) {
  Number lanes[16] = {};
  for (size_t i = 0; i < count; ++i) lanes[i % 16] = add(i, lanes[i % 16]);
  for (int half : {8, 4, 2, 1}) {
    for (int l = 0; l < half; ++l) lanes[l] = lanes[l] + lanes[l + half];
  }
  return lanes[0];
}

float LargestOf(std::span<const float> d) {
  float largest = 0;
  for (float x : d) largest = std::max(largest, std::abs(x));
  return largest;
}

float ScaleNearestTo(float wanted, float limit) {
  const float scale = NearestBfloat16(wanted, limit);
  return scale < 0x1p-100f ? 0 : scale;
}

void PushScale(float scale, std::vector<uint8_t>& bytes) {
  const uint32_t bits = std::bit_cast<uint32_t>(scale);
  bytes.push_back(bits >> 16 & 255);
  bytes.push_back(bits >> 24);
}

// A block's codes as they lie in memory.
void PushBits(const std::vector<bool>& bits, std::vector<uint8_t>& bytes) {
  const size_t at = bytes.size();
  bytes.resize(at + (bits.size() + 7) / 8);
  for (size_t i = 0; i < bits.size(); ++i) bytes[at + i / 8] |= static_cast<uint8_t>(bits[i] ? 1 << i % 8 : 0);
}
void PushNibbles(const std::vector<int>& nibbles, std::vector<uint8_t>& bytes) {
  const size_t at = bytes.size();
  bytes.resize(at + kBlock / 2);
  for (size_t i = 0; i < kBlock; ++i) {
    const size_t line = i / 128, v = i % 128 / 16, l = i % 16;
    bytes[at + 64 * line + 4 * l + v / 2] |= static_cast<uint8_t>(nibbles[i] << 4 * (v % 2));
  }
}

// Number `bits` of `value`, lowest first.
void AppendBits(uint32_t value, int count, std::vector<bool>& bits) {
  for (int k = 0; k < count; ++k) bits.push_back((value >> k & 1) != 0);
}

std::vector<bool> SignsIn(std::span<const float> block) {
  std::vector<bool> signs(kBlock);
  for (size_t i = 0; i < block.size(); ++i) signs[i] = std::signbit(block[i]);
  return signs;
}

void EncodeFloats(CodecId id, std::span<const float> block, Specified& out) {
  for (size_t i = 0; i < kBlock; ++i) {
    const float x = i < block.size() ? block[i] : 0.0f;
    const float y = id == CodecId::kFloat32 ? x : NearestBfloat16(x);
    const uint32_t bits = std::bit_cast<uint32_t>(y);
    for (int shift = id == CodecId::kFloat32 ? 0 : 16; shift < 32; shift += 8) out.codes.push_back(bits >> shift & 255);
    if (i < block.size()) out.decoded.push_back(y);
  }
}

void EncodeIntegers(CodecId id, std::span<const float> block, Specified& out) {
  const float levels = id == CodecId::kInt8 ? 127 : 7;
  const float scale = ScaleNearestTo(LargestOf(block), 0x1p100f);
  const float inverse = scale == 0 ? 0 : levels / scale;
  std::vector<int> codes(kBlock, id == CodecId::kInt8 ? 0 : 8);
  for (size_t i = 0; i < block.size(); ++i) {
    const float rounded = std::nearbyint(block[i] * inverse);
    const int q = static_cast<int>(std::max(-levels, std::min(levels, rounded)));
    codes[i] = id == CodecId::kInt8 ? q : q + 8;
    out.decoded.push_back(static_cast<float>(q) * (scale / levels));
  }
  PushScale(scale, out.scales);
  if (id == CodecId::kInt4) return PushNibbles(codes, out.codes);
  for (int q : codes) out.codes.push_back(static_cast<uint8_t>(q < 0 ? q + 256 : q));
}

void EncodeE3m0(std::span<const float> block, Specified& out) {
  const float scale = ScaleNearestTo(LargestOf(block), 0x1p100f);
  std::vector<int> nibbles(kBlock, 0);
  for (size_t i = 0; i < block.size(); ++i) {
    const double t = scale == 0 ? 0 : std::abs(block[i]) * (1 / scale);
    int nearest = 0;
    const auto level = [](int k) { return k == 0 ? 0 : std::ldexp(1.0, k - 7); };
    for (int k = 1; k < 8; ++k) {
      if (std::abs(t - level(k)) <= std::abs(t - level(nearest))) nearest = k;  // of two the upper one
    }
    const float sign = std::signbit(block[i]) ? -1.0f : 1.0f;
    nibbles[i] = nearest + (sign < 0 ? 8 : 0);
    out.decoded.push_back(sign * (static_cast<float>(level(nearest)) * scale));
  }
  PushScale(scale, out.scales);
  PushNibbles(nibbles, out.codes);
}

void EncodeSigns(CodecId id, std::span<const float> block, float gain, Specified& out) {
  const float sum = SumInOrder<float>(block.size(), [&](size_t i, float lane) { return lane + std::abs(block[i]); });
  const float mean = sum * (1.0f / static_cast<float>(block.size()));
  const float scale = ScaleNearestTo(gain * mean, id == CodecId::kRotatedSign ? 0x1p94f : 0x1p100f);
  for (float x : block) out.decoded.push_back(std::signbit(x) ? -scale : scale);
  PushScale(scale, out.scales);
  PushBits(SignsIn(block), out.codes);
}

struct LloydMax {
  std::vector<float> levels, thresholds;
};
const LloydMax kTwo = {{0.4528f, 1.5104f}, {0.9816f}};
const LloydMax kEight = {{0.1284f, 0.3880f, 0.6568f, 0.9423f, 1.2562f, 1.6180f, 2.0690f, 2.7326f},
                         {0.2582f, 0.5224f, 0.79955f, 1.09925f, 1.4371f, 1.8435f, 2.4008f}};

void EncodeLloydMax(CodecId id, std::span<const float> block, Specified& out) {
  const LloydMax& table = id == CodecId::kRotatedLm2 ? kTwo : kEight;
  const float largest = LargestOf(block);
  const bool empty = largest < 0x1p-100f;
  const int exponent = empty ? 0 : std::ilogb(largest);
  const auto z = [&](size_t i) { return empty ? 0.0f : std::ldexp(std::abs(block[i]), -exponent); };
  const float square = SumInOrder<float>(kBlock, [&](size_t i, float lane) { return std::fma(z(i), z(i), lane); });
  const float inverse_rms = empty ? 0 : 1 / std::sqrt(square / 256);
  std::vector<int> codes;
  for (size_t i = 0; i < kBlock; ++i) {
    const auto reaches = [&](float threshold) { return z(i) * inverse_rms >= threshold; };
    codes.push_back(static_cast<int>(std::count_if(table.thresholds.begin(), table.thresholds.end(), reaches)));
  }
  const auto c = [&](size_t i) { return table.levels[codes[i]]; };
  const float product = SumInOrder<float>(kBlock, [&](size_t i, float lane) { return std::fma(z(i), c(i), lane); });
  const float norm = SumInOrder<float>(kBlock, [&](size_t i, float lane) { return std::fma(c(i), c(i), lane); });
  const float scale = empty ? 0 : ScaleNearestTo(std::ldexp(product / norm, exponent), 0x1p94f);
  for (size_t i = 0; i < kBlock; ++i) out.decoded.push_back(std::signbit(block[i]) ? -(c(i) * scale) : c(i) * scale);
  PushScale(scale, out.scales);
  const std::vector<bool> signs = SignsIn(block);
  if (id == CodecId::kRotatedLm2) {
    PushBits(signs, out.codes);
    return PushBits({codes.begin(), codes.end()}, out.codes);
  }
  for (size_t i = 0; i < kBlock; ++i) codes[i] += signs[i] ? 8 : 0;
  PushNibbles(codes, out.codes);
}

void EncodeTopk(size_t entries, std::span<const float> unit, Specified& out) {
  std::vector<size_t> order;
  for (size_t i = 0; i < unit.size(); ++i) {
    if (unit[i] != 0) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return std::abs(unit[a]) > std::abs(unit[b]); });
  order.resize(std::min(order.size(), entries));
  std::sort(order.begin(), order.end());
  float sum = 0, product = 0, norm = 0;
  for (size_t i : order) sum += std::abs(unit[i]);
  const float mean = order.empty() ? 0 : sum / static_cast<float>(order.size());
  const auto level = [&](size_t i) { return std::abs(unit[i]) >= mean ? 1.25f : 0.875f; };
  for (size_t i : order) {
    product = std::fma(std::abs(unit[i]), level(i), product);
    norm = std::fma(level(i), level(i), norm);
  }
  const float scale = order.empty() ? 0 : ScaleNearestTo(product / norm, 0x1p99f);
  if (scale == 0) order.clear();
  std::vector<bool> indices, codes;
  std::vector<float> decoded(unit.size(), 0.0f);
  for (size_t i : order) {
    AppendBits(static_cast<uint32_t>(i), 12, indices);
    AppendBits((std::signbit(unit[i]) ? 1 : 0) + (level(i) == 1.25f ? 2 : 0), 2, codes);
    decoded[i] = std::copysign(level(i) * scale, unit[i]);
  }
  indices.resize(entries * 12);
  codes.resize(entries * 2);
  PushScale(scale, out.scales);
  PushBits(indices, out.codes);
  PushBits(codes, out.codes);
  out.decoded.insert(out.decoded.end(), decoded.begin(), decoded.end());
}

void EncodeOnebitAdam(std::span<const float> d, Specified& out) {
  double total = 0;
  for (size_t begin = 0; begin < d.size(); begin += kBlock) {
    const auto block = d.subspan(begin, std::min(kBlock, d.size() - begin));
    total += SumInOrder<double>(block.size(), [&](size_t i, double lane) {
      return lane + static_cast<double>(block[i]) * static_cast<double>(block[i]);
    });
    PushBits(SignsIn(block), out.codes);
  }
  float scale = static_cast<float>(std::sqrt(total / static_cast<double>(d.size())));
  if (scale < 0x1p-100f) scale = 0;
  if (scale >= 0x1p100f) scale = std::nextafter(0x1p100f, 0.0f);
  const uint32_t bits = std::bit_cast<uint32_t>(scale);
  for (int shift : {0, 8, 16, 24}) out.scales.push_back(bits >> shift & 255);
  for (float x : d) out.decoded.push_back(std::signbit(x) ? -scale : scale);
}

// The n-th output, n from 0, of the reference implementation of splitmix64 (Vigna).
uint64_t SplitMixOutput(uint64_t seed, uint64_t n) {
  uint64_t state = seed, z = 0;
  state += n * 0x9e3779b97f4a7c15;
  z = (state += 0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

bool Flipped(const Rotation& rotation, size_t i) {
  const uint64_t block = rotation.first_block + i / kBlock;
  return (SplitMixOutput(rotation.seed, 4 * block + i % kBlock / 64) >> i % 64 & 1) != 0;
}

// Every coefficient of a stage from the two it is made of.
void Stages(std::span<float> block) {
  for (size_t distance : {1, 2, 4, 8, 16, 32, 64, 128}) {
    const std::vector<float> in(block.begin(), block.end());
    for (size_t i = 0; i < kBlock; ++i) {
      const float partner = in[i ^ distance];
      block[i] = (i & distance) == 0 ? in[i] + partner : partner - in[i];
    }
  }
  for (float& x : block) x /= 16;
}

}  // namespace

float NearestBfloat16(float value, float limit) {
  const float below = std::bit_cast<float>(std::bit_cast<uint32_t>(value) & 0xffff0000u);
  const float above = std::bit_cast<float>((std::bit_cast<uint32_t>(value) & 0xffff0000u) + 0x10000u);
  const double to_below = std::abs(static_cast<double>(value) - below);
  const double to_above = std::abs(static_cast<double>(above) - value);
  const bool below_is_even = (std::bit_cast<uint32_t>(below) >> 16) % 2 == 0;
  const float nearest = to_below < to_above || (to_below == to_above && below_is_even) ? below : above;
  if (std::abs(nearest) < limit) return nearest;
  return std::copysign(limit * (1 - 0x1p-8f), value);  // 0x1.FEp99 for 2^100
}

Specified BySpecification(CodecId id, std::span<const float> d, float gain) {
  Specified out;
  if (id == CodecId::kOnebitAdamSign) {
    EncodeOnebitAdam(d, out);
    return out;
  }
  const auto entries = static_cast<size_t>(core::TopkEntries(id));
  const size_t step = entries > 0 ? kUnit : kBlock;
  for (size_t begin = 0; begin < d.size(); begin += step) {
    const std::span<const float> part = d.subspan(begin, std::min(step, d.size() - begin));
    switch (id) {
      case CodecId::kFloat32:
      case CodecId::kBfloat16: EncodeFloats(id, part, out); break;
      case CodecId::kInt8:
      case CodecId::kInt4: EncodeIntegers(id, part, out); break;
      case CodecId::kE3m0: EncodeE3m0(part, out); break;
      case CodecId::kSign:
      case CodecId::kRotatedSign: EncodeSigns(id, part, gain, out); break;
      case CodecId::kRotatedLm2:
      case CodecId::kRotatedLm4: EncodeLloydMax(id, part, out); break;
      case CodecId::kTopk32:
      case CodecId::kTopk:
      case CodecId::kTopk128:
      case CodecId::kTopk256:
      case CodecId::kTopk512: EncodeTopk(entries, part, out); break;
      case CodecId::kOnebitAdamSign: break;
    }
  }
  return out;
}

std::vector<float> RotatedBySpecification(const Rotation& rotation, std::span<const float> values) {
  std::vector<float> blocks(values.begin(), values.end());
  blocks.resize((blocks.size() + kBlock - 1) / kBlock * kBlock, 0.0f);
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = Flipped(rotation, i) ? -blocks[i] : blocks[i];
  for (size_t begin = 0; begin < blocks.size(); begin += kBlock) Stages(std::span(blocks).subspan(begin, kBlock));
  return blocks;
}

std::vector<float> RotatedBackBySpecification(const Rotation& rotation, std::span<const float> values) {
  std::vector<float> blocks(values.begin(), values.end());
  for (size_t begin = 0; begin < blocks.size(); begin += kBlock) Stages(std::span(blocks).subspan(begin, kBlock));
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = Flipped(rotation, i) ? -blocks[i] : blocks[i];
  return blocks;
}

}  // namespace causeway::codecs
