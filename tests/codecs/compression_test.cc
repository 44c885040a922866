#include "codecs/compression.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <xxhash.h>
#include <zstd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "codecs/chunk.h"
#include "core/limits.h"
#include "tests/codecs/distributions.h"
#include "tests/codecs/encoded.h"
#include "tests/codecs/test_values.h"

namespace causeway::codecs {
namespace {

using core::CodecId;
using ::testing::HasSubstr;

std::string ChunkOf(CodecId codec, std::span<const float> values) {
  const uint64_t seed = GetCodec(codec).rotates() ? RotationSeed(1, 0) : 0;
  return *EncodeChunk({codec, 3, static_cast<int64_t>(values.size()), seed}, values, {});
}

constexpr CodecId kPaying[] = {CodecId::kFloat32, CodecId::kBfloat16, CodecId::kInt8,
                               CodecId::kInt4,    CodecId::kE3m0,     CodecId::kRotatedLm4};
bool Pays(CodecId codec) { return std::ranges::find(kPaying, codec) != std::end(kPaying); }

void Rehash(std::string& bytes) {
  const uint64_t hash = XXH3_64bits(bytes.data() + 8, bytes.size() - 8);
  std::memcpy(bytes.data(), &hash, sizeof(hash));
}

// A compressed chunk with `frame` after the header of `chunk`.
std::string WithFrame(const std::string& chunk, absl::string_view frame) {
  std::string bytes = absl::StrCat(absl::string_view(chunk).substr(0, kChunkHeaderBytes), frame);
  bytes[13] = 1;
  Rehash(bytes);
  return bytes;
}

std::string Frame(absl::string_view body) {
  std::string frame(ZSTD_compressBound(body.size()), '\0');
  frame.resize(ZSTD_compress(frame.data(), frame.size(), body.data(), body.size(), 1));
  return frame;
}

std::string RefusalOf(const std::string& bytes) {
  const auto expanded = ExpandChunk(bytes);
  EXPECT_EQ(expanded.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(expanded.status().message());
}

class CompressionOf : public ::testing::TestWithParam<CodecId> {};

TEST_P(CompressionOf, ComesBackAsTheSameBytes) {
  for (size_t count : {1, 255, 300, 4097, 100'000}) {
    for (Shape shape : {Shape::kGauss, Shape::kLaplace, Shape::kStudentT3}) {
      const std::string chunk = ChunkOf(GetParam(), ValuesOf(shape, count, 1));
      const std::string compressed = CompressChunk(chunk);
      EXPECT_LE(compressed.size(), chunk.size());
      const auto expanded = ExpandChunk(compressed);
      ASSERT_TRUE(expanded.ok()) << expanded.status();
      EXPECT_TRUE(*expanded == chunk);
    }
  }
}

TEST_P(CompressionOf, ShrinksWhatHasFrequentCodesAndLeavesTheRest) {
  const std::string chunk = ChunkOf(GetParam(), ValuesOf(Shape::kLaplace, 100'000, 1));
  const std::string compressed = CompressChunk(chunk);
  std::printf("%-16s  %.3f of its size\n", core::CodecName(GetParam()),
              static_cast<double>(compressed.size()) / static_cast<double>(chunk.size()));
  if (Pays(GetParam())) {
    EXPECT_LT(compressed.size(), 0.95 * static_cast<double>(chunk.size()));
    EXPECT_EQ(compressed[13], 1);
  } else {
    EXPECT_TRUE(compressed == chunk);
  }
}

TEST_P(CompressionOf, CompressedChunkIsNoChunkUntilItIsExpanded) {
  const std::string compressed = CompressChunk(ChunkOf(GetParam(), ValuesOf(Shape::kLaplace, 5000, 1)));
  EXPECT_EQ(ChunkView::Parse(compressed).ok(), !Pays(GetParam()));
  EXPECT_TRUE(ChunkView::Parse(*ExpandChunk(compressed)).ok());
}

INSTANTIATE_TEST_SUITE_P(Codecs, CompressionOf, ::testing::ValuesIn(core::kAllCodecs),
                         [](const auto& test) { return CodecTestName(test.param); });

TEST(Compression, ChunkThatWouldNotShrinkIsLeftAsItIs) {
  const std::string chunk = ChunkOf(CodecId::kInt8, UniformValues(4 * 4096, 1));  // all codes are as frequent
  EXPECT_TRUE(CompressChunk(chunk) == chunk);
}

TEST(Compression, OfAnotherCodecIsRefused) {
  for (CodecId codec : core::kAllCodecs) {
    if (Pays(codec)) continue;
    const std::string chunk = ChunkOf(codec, ValuesOf(Shape::kLaplace, 1000, 1));
    EXPECT_THAT(RefusalOf(WithFrame(chunk, Frame(chunk.substr(kChunkHeaderBytes)))),
                HasSubstr("expected no compression"));
  }
}

TEST(Compression, OfBfloat16HasLowBytesBeforeHighOnes) {
  const std::string chunk = ChunkOf(CodecId::kBfloat16, ValuesOf(Shape::kLaplace, 5000, 1));
  const std::string compressed = CompressChunk(chunk);
  const absl::string_view body = absl::string_view(chunk).substr(kChunkHeaderBytes);
  std::string split(body.size(), '\0');
  ASSERT_EQ(ZSTD_decompress(split.data(), split.size(), compressed.data() + kChunkHeaderBytes,
                            compressed.size() - kChunkHeaderBytes),
            split.size());
  for (size_t i = 0; i < body.size(); ++i) ASSERT_EQ(split[i / 2 + (i % 2) * body.size() / 2], body[i]) << i;
}

// Chunks that a peer could send instead. Everything that comes out is then checked like any other chunk.
class HostileCompression : public ::testing::TestWithParam<CodecId> {
 protected:
  const std::string chunk_ = ChunkOf(GetParam(), ValuesOf(Shape::kLaplace, 1000, 1));
  const std::string compressed_ = CompressChunk(chunk_);
  const std::string body_ = chunk_.substr(kChunkHeaderBytes);
};

TEST_P(HostileCompression, TruncatedAtAnyLengthIsRefused) {
  for (size_t length = 0; length < compressed_.size(); ++length) {
    std::string part = compressed_.substr(0, length);
    if (length >= 64) {
      EXPECT_THAT(RefusalOf(part), HasSubstr("its hash is"));
      Rehash(part);
      EXPECT_THAT(RefusalOf(part), HasSubstr("expected a zstd frame of"));
    } else {
      EXPECT_FALSE(ChunkView::Parse(*ExpandChunk(part)).ok());
    }
  }
  std::string longer = compressed_ + '\0';
  Rehash(longer);
  EXPECT_THAT(RefusalOf(longer), HasSubstr("expected a zstd frame of"));
}

TEST_P(HostileCompression, FlippedBitIsRefused) {
  for (size_t bit = 0; bit < 8 * compressed_.size(); ++bit) {
    std::string bytes = compressed_;
    bytes[bit / 8] ^= 1 << bit % 8;
    const auto expanded = ExpandChunk(bytes);
    ASSERT_FALSE(expanded.ok() && ChunkView::Parse(*expanded).ok()) << "bit " << bit;
  }
}

TEST_P(HostileCompression, FlippedBitUnderAHashThatFitsNeverGivesAnotherSize) {
  int refused = 0;
  for (size_t bit = 8 * kChunkHeaderBytes; bit < 8 * compressed_.size(); ++bit) {
    std::string bytes = compressed_;
    bytes[bit / 8] ^= 1 << bit % 8;
    Rehash(bytes);
    const auto expanded = ExpandChunk(bytes);
    refused += expanded.ok() ? 0 : 1;
    if (!expanded.ok()) continue;
    ASSERT_EQ(expanded->size(), chunk_.size());
    ASSERT_EQ(expanded->substr(8, 56), chunk_.substr(8, 56));
  }
  EXPECT_GT(refused, 0);
}

TEST_P(HostileCompression, FrameOfAnotherSizeIsRefused) {
  const size_t size = body_.size();
  EXPECT_EQ(ExpandChunk(WithFrame(chunk_, Frame(std::string(size, '\0'))))->size(), chunk_.size());
  EXPECT_THAT(RefusalOf(WithFrame(chunk_, Frame(body_.substr(1)))),
              HasSubstr(absl::StrCat("got ", size - 1, " bytes")));
  EXPECT_THAT(RefusalOf(WithFrame(chunk_, Frame(body_ + '\0'))), HasSubstr(absl::StrCat("frame of ", size, " bytes")));
  EXPECT_THAT(RefusalOf(WithFrame(chunk_, Frame(std::string(1 << 24, '\0')))), HasSubstr("expected a zstd frame of"));
  EXPECT_THAT(RefusalOf(WithFrame(chunk_, "")), HasSubstr("expected a zstd frame of"));
  EXPECT_THAT(RefusalOf(WithFrame(chunk_, body_)), HasSubstr("expected a zstd frame of"));
}

TEST_P(HostileCompression, AnythingBesideTheFrameIsRefused) {
  const std::string frame = compressed_.substr(kChunkHeaderBytes);
  const std::string skippable("\x50\x2a\x4d\x18\x04\x00\x00\x00junk", 12);
  const size_t half = body_.size() / 2;
  for (const std::string& frames : {skippable + frame, frame + skippable, frame + Frame(""), Frame("") + frame,
                                    Frame(body_.substr(0, half)) + Frame(body_.substr(half))}) {
    EXPECT_THAT(RefusalOf(WithFrame(chunk_, frames)), HasSubstr("expected a zstd frame of"));
  }
}

TEST_P(HostileCompression, HeaderThatPromisesTooMuchIsRefusedBeforeAnythingIsExpanded) {
  std::string bytes = compressed_;
  for (uint64_t values : {uint64_t{0}, uint64_t{1} << 22, uint64_t{1} << 40, ~uint64_t{0}}) {
    std::memcpy(bytes.data() + 24, &values, sizeof(values));
    Rehash(bytes);
    EXPECT_FALSE(ExpandChunk(bytes).ok()) << values;
  }
  bytes = compressed_;
  bytes[12] = 99;
  Rehash(bytes);
  EXPECT_THAT(RefusalOf(bytes), HasSubstr("codec 99 is unknown"));
}

TEST_P(HostileCompression, WhatExpandsIsCheckedLikeAnyChunk) {
  const auto expanded = ExpandChunk(WithFrame(chunk_, Frame(std::string(body_.size(), '\xff'))));
  ASSERT_TRUE(expanded.ok()) << expanded.status();
  EXPECT_EQ(ChunkView::Parse(*expanded).status().code(), absl::StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Codecs, HostileCompression, ::testing::ValuesIn(kPaying),
                         [](const auto& test) { return CodecTestName(test.param); });

// Codec::DecodeSum: several sites' bytes in one pass, against one after the other by the scalar code.

constexpr float kGuard = 123.0f;

class DecodeSumOf : public ::testing::TestWithParam<std::tuple<CodecId, Target>> {};

TEST_P(DecodeSumOf, AnyNumberOfSitesEqualsTheScalarCodeAddingThemOneByOne) {
  const auto [id, target] = GetParam();
  if (!Supported(target)) GTEST_SKIP() << "not on this processor";
  const Codec& scalar = GetCodec(id, Target::kScalar);
  for (int64_t count : {1, 255, 256, 300, 4096, 3 * 4096 + 513}) {
    const size_t domain_values = DomainValues(id, count);
    std::vector<Encoded> sites;
    std::vector<DecodeTerm> terms;
    std::vector<float> expected(domain_values, 0.0f);
    for (int site = 0; site < 9; ++site) {
      std::vector<float> values = UniformValues(count, 10 + site);
      if (site == 2) std::fill(values.begin(), values.end(), -0.0f);  // blocks without a scale
      sites.push_back(EncodeWith(scalar, values));
      const float weight = site == 3 ? 0.0f : 0.1f * static_cast<float>(1 + site);
      terms.push_back({sites.back().scales.data(), sites.back().codes.data(), weight});
      scalar.Decode({.scales = terms.back().scales,
                     .codes = terms.back().codes,
                     .values = expected.data(),
                     .count = count,
                     .add = weight});
      std::vector<float> sum(domain_values + 1, kGuard);  // what was there does not count
      GetCodec(id, target).DecodeSum(terms, count, sum.data());
      EXPECT_EQ(sum.back(), kGuard);
      sum.pop_back();
      ASSERT_EQ(Bits(sum), Bits(expected)) << count << " values, " << terms.size() << " sites";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, DecodeSumOf,
                         ::testing::Combine(::testing::ValuesIn(core::kAllCodecs), ::testing::ValuesIn(kAllTargets)),
                         [](const auto& test) {
                           return std::string(core::CodecName(std::get<0>(test.param))) + "_" +
                                  TargetName(std::get<1>(test.param));
                         });

}  // namespace
}  // namespace causeway::codecs
