#include "codecs/rotation.h"

#include <bit>

#include "core/check.h"
#include "core/multiversion.h"
#include "core/random.h"

namespace causeway::codecs {
namespace {

constexpr uint64_t kSplitMixStep = 0x9e3779b97f4a7c15;
constexpr float kNorm = 0x1p-4f;  // 1 / √256

CAUSEWAY_MULTIVERSION
void Hadamard(float* values) {
  for (int distance = 1; distance < core::kBlockValues; distance *= 2) {
    for (int begin = 0; begin < core::kBlockValues; begin += 2 * distance) {
      for (int i = begin; i < begin + distance; ++i) {
        const float a = values[i], b = values[i + distance];
        values[i] = a + b;
        values[i + distance] = a - b;
      }
    }
  }
  for (int i = 0; i < core::kBlockValues; ++i) values[i] *= kNorm;
}

CAUSEWAY_MULTIVERSION
void FlipSigns(const uint64_t* words, float* values) {
  for (int i = 0; i < core::kBlockValues; ++i) {
    const uint32_t flip = static_cast<uint32_t>(words[i / 64] >> (i % 64)) << 31;
    values[i] = std::bit_cast<float>(std::bit_cast<uint32_t>(values[i]) ^ flip);
  }
}

template <typename Transform>
void ForEachBlock(const Rotation& rotation, std::span<float> values, Transform transform) {
  CHECK(values.size() % core::kBlockValues == 0);
  for (size_t begin = 0; begin < values.size(); begin += core::kBlockValues) {
    const int64_t block = rotation.first_block + static_cast<int64_t>(begin) / core::kBlockValues;
    transform(SignsOf(rotation.seed, block), values.subspan(begin).first<core::kBlockValues>());
  }
}

}  // namespace

uint64_t RotationSeed(uint64_t run_seed, core::FragmentId fragment) {
  return core::HashCombine(run_seed, static_cast<uint64_t>(fragment));
}

BlockSigns SignsOf(uint64_t seed, int64_t block) {
  BlockSigns signs;
  for (uint64_t w = 0; w < 4; ++w) {
    signs.words[w] = core::SplitMix64(seed + (4 * static_cast<uint64_t>(block) + w) * kSplitMixStep);
  }
  return signs;
}

void Rotate(const BlockSigns& signs, BlockSpan block) {
  FlipSigns(signs.words, block.data());
  Hadamard(block.data());
}

void Unrotate(const BlockSigns& signs, BlockSpan block) {
  Hadamard(block.data());
  FlipSigns(signs.words, block.data());
}

void Rotate(const Rotation& rotation, std::span<float> values) {
  ForEachBlock(rotation, values, [](const BlockSigns& signs, BlockSpan block) { Rotate(signs, block); });
}

void Unrotate(const Rotation& rotation, std::span<float> values) {
  ForEachBlock(rotation, values, [](const BlockSigns& signs, BlockSpan block) { Unrotate(signs, block); });
}

}  // namespace causeway::codecs
