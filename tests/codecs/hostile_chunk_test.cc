// Bytes that a peer could send instead of a chunk: nothing of it may reach a merge.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <xxhash.h>

#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "codecs/chunk.h"
#include "tests/codecs/test_values.h"

namespace causeway::codecs {
namespace {

using core::CodecId;
using ::testing::HasSubstr;

constexpr int64_t kHostileValues = 300;  // two blocks, the second one partly padding

std::string GoodChunk(CodecId codec) {
  const ChunkSpan span = {codec, 3, kHostileValues, GetCodec(codec).rotates() ? RotationSeed(1, 0) : 0};
  return *EncodeChunk(span, UniformValues(kHostileValues, 1), {});
}

// Receives a chunk as a merge does; the target changes only if the bytes were accepted.
absl::Status Receive(absl::string_view bytes, std::span<float> target) {
  const auto view = ChunkView::Parse(bytes);
  if (!view.ok()) return view.status();
  view->DecodeAdd(view->span().first_unit, 1.0f, target);
  return absl::OkStatus();
}

void RehashHostile(std::string& bytes) {
  const uint64_t hash = XXH3_64bits(bytes.data() + 8, bytes.size() - 8);
  std::memcpy(bytes.data(), &hash, sizeof(hash));
}

// The refusal of a good chunk after `offset` was overwritten and the hash made to fit.
template <typename T>
std::string RefusalOf(CodecId codec, size_t offset, T value) {
  std::string bytes = GoodChunk(codec);
  std::memcpy(bytes.data() + offset, &value, sizeof(value));
  RehashHostile(bytes);
  const auto view = ChunkView::Parse(bytes);
  EXPECT_EQ(view.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(view.status().message());
}

class HostileChunk : public ::testing::TestWithParam<CodecId> {};

TEST_P(HostileChunk, TruncatedAtAnyLengthIsRefused) {
  const std::string bytes = GoodChunk(GetParam());
  for (size_t length = 0; length < bytes.size(); ++length) {
    // A copy on the heap, so that reading beyond its end is seen by AddressSanitizer.
    const std::vector<char> part(bytes.begin(), bytes.begin() + length);
    ASSERT_FALSE(ChunkView::Parse(absl::string_view(part.data(), part.size())).ok()) << length;
    std::string rehashed = bytes.substr(0, length);
    if (length >= 8) RehashHostile(rehashed);
    ASSERT_FALSE(ChunkView::Parse(rehashed).ok()) << length;
  }
  EXPECT_FALSE(ChunkView::Parse(bytes + '\0').ok());
}

TEST_P(HostileChunk, FlippedBitIsRefusedAndTargetUntouched) {
  std::string bytes = GoodChunk(GetParam());
  std::vector<float> target(kHostileValues, 1.0f);
  const std::vector<float> before = target;
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    bytes[bit / 8] ^= 1 << bit % 8;
    ASSERT_FALSE(Receive(bytes, target).ok()) << "bit " << bit;
    bytes[bit / 8] ^= 1 << bit % 8;
  }
  EXPECT_EQ(target, before);
  EXPECT_TRUE(Receive(bytes, target).ok());
  EXPECT_NE(target, before);
}

TEST_P(HostileChunk, ImpossibleHeaderIsRefusedThoughItsHashFits) {
  const CodecId codec = GetParam();
  EXPECT_THAT(RefusalOf<uint32_t>(codec, 8, 0x32435743), HasSubstr("expected magic 31435743 (CWC1), got 32435743"));
  for (int number : {0, 16, 127, 255}) {
    EXPECT_THAT(RefusalOf<uint8_t>(codec, 12, number), HasSubstr(absl::StrCat("codec ", number, " is unknown")));
  }
  EXPECT_THAT(RefusalOf<uint8_t>(codec, 13, 1), HasSubstr("expected one that is not compressed"));
  EXPECT_THAT(RefusalOf<uint8_t>(codec, 13, 2), HasSubstr("expected 0 or 1 for compressed, got 2"));
  EXPECT_THAT(RefusalOf<uint8_t>(codec, 14, 1), HasSubstr("reserved bytes"));
  EXPECT_THAT(RefusalOf<uint8_t>(codec, 15, 1), HasSubstr("reserved bytes"));
  EXPECT_THAT(RefusalOf<uint8_t>(codec, 40, 1), HasSubstr("reserved bytes"));
  EXPECT_THAT(RefusalOf<uint8_t>(codec, 63, 1), HasSubstr("reserved bytes"));
  if (!GetCodec(codec).rotates()) {
    EXPECT_THAT(RefusalOf<uint64_t>(codec, 32, uint64_t{1} << 63), HasSubstr("does not rotate"));
  }
  EXPECT_THAT(RefusalOf<uint64_t>(codec, 24, 0), HasSubstr("values, got 0"));
  EXPECT_THAT(RefusalOf<uint64_t>(codec, 24, 4097 + 4096), HasSubstr("for 8193 values"));
}

TEST_P(HostileChunk, HugeFieldsDoNotOverflow) {
  for (uint64_t huge : {uint64_t{1} << 41, uint64_t{1} << 62, (uint64_t{1} << 63) - 1, uint64_t{1} << 63, ~uint64_t{0},
                        ~uint64_t{254}}) {
    EXPECT_THAT(RefusalOf<uint64_t>(GetParam(), 24, huge), HasSubstr("expected 1 to 1099511627776 values"));
    EXPECT_THAT(RefusalOf<uint64_t>(GetParam(), 16, huge), HasSubstr("expected a first unit of at most"));
  }
  EXPECT_THAT(RefusalOf<uint64_t>(GetParam(), 24, uint64_t{1} << 40), HasSubstr("expected at most 1048576 bytes, got"));
}

TEST_P(HostileChunk, PaddingThatIsNotZeroIsRefused) {
  const size_t size = GoodChunk(GetParam()).size();
  const int64_t scales = GetCodec(GetParam()).ScaleBytes(kHostileValues);
  if (scales == 0) return;  // float32 and bfloat16, which have no padded codes either
  EXPECT_THAT(RefusalOf<uint8_t>(GetParam(), 64 + scales, 1), HasSubstr("padding after scales and codes"));
  EXPECT_EQ(size % 64, 0u);
}

INSTANTIATE_TEST_SUITE_P(Codecs, HostileChunk, ::testing::ValuesIn(core::kAllCodecs),
                         [](const auto& test) { return CodecTestName(test.param); });

constexpr size_t kScales = 64;
constexpr size_t kCodes = 128;  // of the codecs with scales, after two of them and padding

TEST(HostileScale, OutsideItsRangeIsRefused) {
  for (CodecId codec : {CodecId::kInt8, CodecId::kInt4, CodecId::kE3m0, CodecId::kSign, CodecId::kRotatedSign,
                        CodecId::kRotatedLm2, CodecId::kRotatedLm4}) {
    for (uint16_t scale : {0x7f80, 0x7fc0, 0xff80, 0xffff, 0x8000, 0xbf80, 0x7180, 0x0d7f, 0x0001}) {
      // ∞, NaN, −∞, −NaN, −0, −1, 2^100, just below 2^-100, a denormal
      EXPECT_THAT(RefusalOf<uint16_t>(codec, kScales + 2, scale), HasSubstr("block 1: expected a scale of 0 or"));
    }
  }
}

// Rotated back, coefficients of 2^94 could add up to 2^100.
TEST(HostileScale, OfARotatedBlockFrom2To94OnIsRefused) {
  for (CodecId codec : {CodecId::kRotatedSign, CodecId::kRotatedLm2, CodecId::kRotatedLm4}) {
    EXPECT_THAT(RefusalOf<uint16_t>(codec, kScales, 0x6e80), HasSubstr("to below 2^94, got"));
  }
  EXPECT_THAT(RefusalOf<uint16_t>(CodecId::kTopk, kScales, 0x7100), HasSubstr("unit 0: expected a scale of 0 or"));
}

TEST(HostileScale, OfAWholeChunkIsCheckedToo) {
  for (float scale : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), -1.0f, -0.0f,
                      0x1p100f, 0x1p-101f}) {
    EXPECT_THAT(RefusalOf<float>(CodecId::kOnebitAdamSign, kScales, scale), HasSubstr("expected a scale of 0 or"));
  }
}

TEST(HostileScale, ZeroWithCodesThatAreNotIsRefused) {
  EXPECT_THAT(RefusalOf<uint16_t>(CodecId::kInt8, kScales, 0), HasSubstr("at most 0 in magnitude"));
  EXPECT_THAT(RefusalOf<uint16_t>(CodecId::kInt4, kScales, 0), HasSubstr("at most 0 in magnitude"));
  EXPECT_THAT(RefusalOf<uint16_t>(CodecId::kE3m0, kScales, 0), HasSubstr("expected exponents of 0 with a scale of 0"));
  EXPECT_THAT(RefusalOf<uint16_t>(CodecId::kTopk, kScales, 0), HasSubstr("expected zeros after its 0 entries"));
}

TEST(HostileCodes, ThatNoEncoderWritesAreRefused) {
  EXPECT_THAT(RefusalOf<uint8_t>(CodecId::kInt8, kCodes + 5, 0x80), HasSubstr("got -128 at 5"));
  EXPECT_THAT(RefusalOf<uint8_t>(CodecId::kInt4, kCodes + 4, 0x90), HasSubstr("got -8 at 1"));
  const float bad[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), -0x1p100f};
  for (float value : bad) {
    EXPECT_THAT(RefusalOf<float>(CodecId::kFloat32, 64 + 4, value), HasSubstr("finite values below 2^100"));
    const uint16_t upper_half = std::bit_cast<uint32_t>(value) >> 16;
    EXPECT_THAT(RefusalOf<uint16_t>(CodecId::kBfloat16, 64 + 2, upper_half), HasSubstr("finite values below 2^100"));
  }
}

TEST(HostileCodes, PaddingOfTheLastBlockMustBeZero) {
  EXPECT_THAT(RefusalOf<uint8_t>(CodecId::kInt8, kCodes + kHostileValues, 1), HasSubstr("got 1 at 44"));
  EXPECT_THAT(RefusalOf<uint8_t>(CodecId::kInt4, kCodes + 4 * 64 - 1, 0x98), HasSubstr("at most 0 in magnitude"));
  EXPECT_THAT(RefusalOf<uint8_t>(CodecId::kSign, kCodes + 63, 0x80), HasSubstr("padding of +0"));
  EXPECT_THAT(RefusalOf<uint8_t>(CodecId::kFloat32, 64 + 4 * kHostileValues + 3, 0x80), HasSubstr("padding of +0"));
  EXPECT_THAT(RefusalOf<uint8_t>(CodecId::kBfloat16, 64 + 2 * kHostileValues + 1, 0x80), HasSubstr("padding of +0"));
}

TEST(HostileCodes, SignsOfPaddingMustBeZero) {
  EXPECT_THAT(RefusalOf<uint8_t>(CodecId::kE3m0, kCodes + 4 * 64 - 1, 0x80), HasSubstr("expected padding of 0"));
  EXPECT_THAT(RefusalOf<uint8_t>(CodecId::kOnebitAdamSign, kCodes + 63, 0x80), HasSubstr("padding of +0"));
}

// 64 indices of 12 bits, then 64 codes of 2 bits. A chunk of 300 values has 64 entries.
TEST(HostileTopk, IndexBeyondTheValuesIsRefused) {
  EXPECT_THAT(RefusalOf<uint8_t>(CodecId::kTopk, kCodes + 95, 0xff), HasSubstr("expected indices below 300, got"));
}

TEST(HostileTopk, ListThatEndsMustBeFollowedByZeros) {
  // The second index is made 0, which does not rise: the list ends after one entry, but codes follow.
  EXPECT_THAT(RefusalOf<uint16_t>(CodecId::kTopk, kCodes + 1, 0), HasSubstr("expected zeros after its 1 entries"));
}

TEST(HostileChunk, BytesAfterTheCodesMustBeZero) {
  std::string bytes = *EncodeChunk({CodecId::kSign, 0, 10}, UniformValues(10, 1), {});  // 32 bytes of codes, padded
  bytes.back() = 1;
  RehashHostile(bytes);
  EXPECT_THAT(std::string(ChunkView::Parse(bytes).status().message()), HasSubstr("padding after scales and codes"));
}

}  // namespace
}  // namespace causeway::codecs
