// Every size, with tails of every length, and memory that begins anywhere.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "codecs/chunk.h"
#include "tests/codecs/encoded.h"

namespace causeway::codecs {
namespace {

using core::CodecId;

std::vector<size_t> Sizes() {
  std::vector<size_t> sizes;
  for (size_t size = 1; size <= 600; ++size) sizes.push_back(size);
  for (size_t around : {768, 1024, 2048, 3840, 4096, 4352, 8192, 8448}) {
    for (size_t size = around - 2; size <= around + 2; ++size) sizes.push_back(size);
  }
  for (size_t prime : {601, 1009, 2003, 3001, 4001, 4099, 5003, 6007, 7001, 8009, 9001, 9973, 10'000}) {
    sizes.push_back(prime);
  }
  return sizes;
}

class SizesOf : public ::testing::TestWithParam<CodecId> {};

TEST_P(SizesOf, ComeBackFromAChunkAsSpecified) {
  for (size_t size : Sizes()) {
    const std::vector<float> values = UniformValues(size, size);
    const ChunkSpan span = {GetParam(), 2, static_cast<int64_t>(size), RotationOf(GetParam()) ? kRotation.seed : 0};
    const auto bytes = EncodeChunk(span, values, {});  // unit 2 is block 32, as in kRotation
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    const auto view = ChunkView::Parse(*bytes);
    ASSERT_TRUE(view.ok()) << view.status();
    std::vector<float> decoded(size);
    view->Decode(2, decoded);
    const Specified specified = BySpecification(GetParam(), InDomain(GetParam(), values), 1);
    ASSERT_EQ(Bits(decoded), Bits(OutOfDomain(GetParam(), specified.decoded, size))) << size << " values";
  }
}

TEST_P(SizesOf, WithFeedbackKeepWhatIsDropped) {
  for (size_t size : Sizes()) {
    SCOPED_TRACE(size);
    ExpectAsSpecified(GetParam(), UniformValues(size, 1), 1.25f, 0.9f,
                      UniformValues(DomainValues(GetParam(), size), 2));
    if (HasFatalFailure()) return;
  }
}

// Memory that begins `offset` items after a cache line, with others around it that must stay untouched.
template <typename T>
class Guarded {
 public:
  Guarded(size_t count, size_t offset)
      : at_(kGuard + offset), count_(count), items_(at_ + count + kGuard, kUntouched) {}
  std::span<T> items() { return std::span(items_).subspan(at_, count_); }
  bool untouched() const {
    const auto good = [](T item) { return item == kUntouched; };
    return std::all_of(items_.begin(), items_.begin() + at_, good) &&
           std::all_of(items_.begin() + at_ + count_, items_.end(), good);
  }

 private:
  static constexpr size_t kGuard = 64;
  static constexpr T kUntouched = 90;
  const size_t at_, count_;
  std::vector<T> items_;
};

// Values, residuals, scales, codes and decoded values at offsets of their own.
void ExpectSameAnywhere(const Codec& codec, CodecId id, size_t count, size_t offset) {
  const size_t in_domain = DomainValues(id, count);
  const std::vector<float> x = UniformValues(count, 3), e = UniformValues(in_domain, 4);
  const Encoded expected = EncodeWith(codec, x, 1.25f, 0.5f, e);
  Guarded<float> values(count, offset), residual(in_domain, (offset + 5) % 16), decoded(count, (offset + 11) % 16);
  Guarded<uint8_t> scales(expected.scales.size(), 2 * offset + 1), codes(expected.codes.size(), 3 * offset + 1);
  std::ranges::copy(x, values.items().begin());
  std::ranges::copy(e, residual.items().begin());
  ASSERT_TRUE(codec.Encode({.values = values.items().data(),
                            .count = static_cast<int64_t>(count),
                            .rotation = RotationOf(id),
                            .beta = 0.5f,
                            .residual = residual.items().data(),
                            .next_residual = residual.items().data(),
                            .gain = 1.25f,
                            .scales = scales.items().data(),
                            .codes = codes.items().data()}));
  ASSERT_TRUE(std::ranges::equal(scales.items(), expected.scales));
  ASSERT_TRUE(std::ranges::equal(codes.items(), expected.codes));
  ASSERT_EQ(Bits(residual.items()), Bits(expected.residual));
  DecodeJob job = {.scales = scales.items().data(),
                   .codes = codes.items().data(),
                   .rotation = RotationOf(id),
                   .values = decoded.items().data(),
                   .count = static_cast<int64_t>(count)};
  codec.Decode(job);
  const std::vector<float> plain = Decode(id, expected, count);
  ASSERT_EQ(Bits(decoded.items()), Bits(plain));
  job.add = 2.0f;
  codec.Decode(job);
  for (size_t i = 0; i < count; ++i) ASSERT_EQ(decoded.items()[i], std::fma(2.0f, plain[i], plain[i])) << i;
  EXPECT_TRUE(values.untouched() && residual.untouched() && decoded.untouched());
  EXPECT_TRUE(scales.untouched() && codes.untouched());
}

TEST_P(SizesOf, MemoryMayBeginAnywhereAndNothingAroundItIsTouched) {
  for (Target target : kAllTargets) {
    if (!Supported(target)) continue;
    for (size_t count : {1, 17, 255, 256, 300, 2 * 256 + 16, 4096 + 17, 2 * 4096}) {
      for (size_t offset = 0; offset < 16; ++offset) {
        SCOPED_TRACE(testing::Message() << TargetName(target) << ", " << count << " values, offset " << offset);
        ExpectSameAnywhere(GetCodec(GetParam(), target), GetParam(), count, offset);
        if (HasFatalFailure()) return;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, SizesOf, ::testing::ValuesIn(core::kAllCodecs),
                         [](const auto& test) { return CodecTestName(test.param); });

}  // namespace
}  // namespace causeway::codecs
