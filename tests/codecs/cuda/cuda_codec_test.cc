#include "codecs/cuda/cuda_codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/layout.h"
#include "tests/codecs/cuda/device_array.h"
#include "tests/codecs/test_values.h"

namespace causeway::codecs::cuda {
namespace {

using core::CodecId;

constexpr Rotation kRotation = {0x1234567890abcdef, 48};

struct Case {
  CodecId id;
  int64_t count;
  bool feedback;
  bool in_domain;  // of a codec that rotates
  Place payload;
};

struct Result {
  std::vector<uint8_t> scales, codes;
  std::vector<float> residual;
};

// Values that a codec meets: scales apart, zeros of both signs, denormals.
std::vector<float> Input(int64_t count, uint64_t seed) {
  std::vector<float> values = UniformValues(count, seed);
  for (int64_t i = 0; i < count; ++i) values[i] = std::ldexp(values[i], static_cast<int>(i / 256 % 40) - 20);
  for (int64_t i = 0; i < count; i += 97) values[i] = i % 2 == 0 ? 0.0f : -0.0f;
  if (count > 600) std::fill_n(values.begin() + 256, 256, 1e-41f);
  return values;
}

int64_t WholeBlocks(int64_t count) { return core::BlocksFor(count) * core::kBlockValues; }

EncodeJob JobOf(const Case& c) {
  EncodeJob job = {.count = c.count, .beta = c.feedback ? 0.9f : 0.0f, .gain = c.feedback ? 1.25f : 1.0f};
  if (GetCodec(c.id).rotates() && !c.in_domain) job.rotation = kRotation;
  return job;
}

Result OnCpu(const Case& c, std::span<const float> values, std::vector<float> residual) {
  const Codec& codec = GetCodec(c.id, Target::kScalar);
  Result result = {std::vector<uint8_t>(codec.ScaleBytes(c.count)), std::vector<uint8_t>(codec.CodeBytes(c.count)),
                   std::move(residual)};
  EncodeJob job = JobOf(c);
  job.values = values.data();
  if (c.feedback) job.residual = job.next_residual = result.residual.data();
  job.scales = result.scales.data();
  job.codes = result.codes.data();
  EXPECT_TRUE(codec.Encode(job));
  return result;
}

Result OnGpu(const Case& c, std::span<const float> values, const std::vector<float>& residual) {
  const Codec& codec = GetCodec(c.id);
  DeviceArray<float> x(values, Place::kDevice), e(std::span<const float>(residual), Place::kDevice);
  DeviceArray<uint8_t> scales(codec.ScaleBytes(c.count), c.payload), codes(codec.CodeBytes(c.count), c.payload);
  const std::vector<unsigned long long> none = {kNoBadBlock};
  DeviceArray<unsigned long long> bad(std::span<const unsigned long long>(none), Place::kDevice);
  EncodeJob job = JobOf(c);
  job.values = x.data();
  if (c.feedback) job.residual = job.next_residual = e.data();
  job.scales = scales.data();
  job.codes = codes.data();
  EXPECT_TRUE(Encode(c.id, job, bad.data(), nullptr).ok());
  Must(cudaDeviceSynchronize(), "encode");
  EXPECT_EQ(bad.Values()[0], kNoBadBlock);
  return {scales.Values(), codes.Values(), e.Values()};
}

class CudaCodec : public ::testing::TestWithParam<CodecId> {
 protected:
  void SetUp() override {
    if (const std::string why = WhyNoGpu(); !why.empty()) GTEST_SKIP() << why;
    if (!Supports(GetParam())) GTEST_SKIP() << core::CodecName(GetParam()) << " stays on the CPU";
  }

  template <typename Check>
  void ForEachCase(Check check) {
    for (int64_t count : {1, 17, 255, 256, 257, 4096, 4097, 12345, 70'000}) {
      for (bool feedback : {false, true}) {
        for (bool in_domain : {false, true}) {
          if (in_domain && !GetCodec(GetParam()).rotates()) continue;
          for (Place payload : {Place::kDevice, Place::kMappedHost}) {
            SCOPED_TRACE(testing::Message() << count << " values, feedback " << feedback << ", in domain " << in_domain
                                            << ", payload " << static_cast<int>(payload));
            check(Case{GetParam(), count, feedback, in_domain, payload});
          }
        }
      }
    }
  }
};

TEST_P(CudaCodec, GivesTheBytesAndTheResidualOfTheReference) {
  ForEachCase([](const Case& c) {
    const std::vector<float> values = Input(WholeBlocks(c.count), 1);
    std::vector<float> residual = Input(WholeBlocks(c.count), 2);
    if (!GetCodec(c.id).rotates()) std::fill(residual.begin() + c.count, residual.end(), 0.0f);
    const Result expected = OnCpu(c, values, residual), got = OnGpu(c, values, residual);
    EXPECT_EQ(got.scales, expected.scales);
    EXPECT_EQ(got.codes, expected.codes);
    EXPECT_EQ(Bits(got.residual), Bits(expected.residual));
  });
}

TEST_P(CudaCodec, DecodesAndAddsToTheBitsOfTheReference) {
  if (core::TopkEntries(GetParam()) > 0) GTEST_SKIP() << "no GPU decodes topk";
  ForEachCase([](const Case& c) {
    const std::vector<float> values = Input(WholeBlocks(c.count), 1), before = UniformValues(WholeBlocks(c.count), 3);
    const Result encoded = OnCpu({c.id, c.count, false, c.in_domain, c.payload}, values, {});
    for (const std::optional<float> add : {std::optional<float>(), std::optional<float>(0.3f)}) {
      std::vector<float> expected = before;
      DecodeJob job = {.scales = encoded.scales.data(),
                       .codes = encoded.codes.data(),
                       .rotation = JobOf(c).rotation,
                       .values = expected.data(),
                       .count = c.count,
                       .add = add};
      GetCodec(c.id, Target::kScalar).Decode(job);
      DeviceArray<uint8_t> scales(std::span<const uint8_t>(encoded.scales), c.payload);
      DeviceArray<uint8_t> codes(std::span<const uint8_t>(encoded.codes), c.payload);
      DeviceArray<float> got(std::span<const float>(before), Place::kDevice);
      job.scales = scales.data();
      job.codes = codes.data();
      job.values = got.data();
      ASSERT_TRUE(Decode(c.id, job, nullptr).ok());
      Must(cudaDeviceSynchronize(), "decode");
      EXPECT_EQ(Bits(got.Values()), Bits(expected));
    }
  });
}

TEST_P(CudaCodec, NamesTheFirstBlockThatIsOutOfRange) {
  std::vector<float> values = UniformValues(10'000, 1);
  values[3000] = std::numeric_limits<float>::quiet_NaN();
  values[9999] = std::numeric_limits<float>::infinity();
  const Codec& codec = GetCodec(GetParam());
  DeviceArray<float> x(std::span<const float>(values), Place::kDevice);
  DeviceArray<uint8_t> scales(codec.ScaleBytes(10'000), Place::kDevice), codes(codec.CodeBytes(10'000), Place::kDevice);
  const std::vector<unsigned long long> none = {kNoBadBlock};
  DeviceArray<unsigned long long> bad(std::span<const unsigned long long>(none), Place::kDevice);
  EncodeJob job = {.values = x.data(), .count = 10'000, .scales = scales.data(), .codes = codes.data()};
  if (codec.rotates()) job.rotation = kRotation;
  ASSERT_TRUE(Encode(GetParam(), job, bad.data(), nullptr).ok());
  Must(cudaDeviceSynchronize(), "encode");
  EXPECT_EQ(bad.Values()[0], 3000u / 256);
}

INSTANTIATE_TEST_SUITE_P(Codecs, CudaCodec, ::testing::ValuesIn(core::kAllCodecs),
                         [](const auto& test) { return CodecTestName(test.param); });

}  // namespace
}  // namespace causeway::codecs::cuda
