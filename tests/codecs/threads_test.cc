// One chunk, several threads: each takes a range of units, and what comes out does not depend on how many there are.
#include <gtest/gtest.h>

#include <thread>

#include "tests/codecs/encoded.h"

namespace causeway::codecs {
namespace {

using core::CodecId;

constexpr int64_t kUnits = 37;
constexpr int64_t kValues = (kUnits - 1) * core::kUnitValues + 100;

// A job for units [first, end) of `whole`.
template <typename Job>
Job PartOf(const Codec& codec, const Job& whole, int64_t first, int64_t end) {
  Job part = whole;
  const int64_t begin = first * core::kUnitValues;
  part.values += begin;
  part.count = std::min(whole.count, end * core::kUnitValues) - begin;
  if (whole.rotation) part.rotation->first_block += first * core::kBlocksPerUnit;
  part.scales += codec.ScaleOffset(first);
  part.codes += codec.CodeOffset(first);
  if constexpr (requires { part.residual; }) {
    part.residual += begin;
    part.next_residual += begin;
  }
  return part;
}

template <typename Job, typename Run>
void RunOn(int threads, const Codec& codec, const Job& whole, Run run) {
  std::vector<std::thread> running;
  for (int t = 0; t < threads; ++t) {
    const int64_t first = kUnits * t / threads, end = kUnits * (t + 1) / threads;
    running.emplace_back([&, first, end] { run(PartOf(codec, whole, first, end)); });
  }
  for (std::thread& thread : running) thread.join();
}

class ThreadsOf : public ::testing::TestWithParam<CodecId> {};

TEST_P(ThreadsOf, AnyNumberOfThemEncodesTheSameBytesAndResiduals) {
  const Codec& codec = GetCodec(GetParam());
  const std::vector<float> values = UniformValues(kValues, 1);
  const std::vector<float> residual = UniformValues(DomainValues(GetParam(), kValues), 2);
  const Encoded expected = EncodeWith(codec, values, 1.25f, 0.9f, residual);
  for (int threads : {1, 2, 3, 7}) {
    Encoded encoded = {std::vector<uint8_t>(expected.scales.size()), std::vector<uint8_t>(expected.codes.size()),
                       std::vector<float>(residual.size())};
    const EncodeJob whole = {.values = values.data(),
                             .count = kValues,
                             .rotation = RotationOf(GetParam()),
                             .beta = 0.9f,
                             .residual = residual.data(),
                             .next_residual = encoded.residual.data(),
                             .gain = 1.25f,
                             .scales = encoded.scales.data(),
                             .codes = encoded.codes.data()};
    RunOn(threads, codec, whole, [&](const EncodeJob& job) { EXPECT_TRUE(codec.Encode(job)); });
    EXPECT_EQ(encoded.scales, expected.scales) << threads;
    EXPECT_EQ(encoded.codes, expected.codes) << threads;
    EXPECT_EQ(Bits(encoded.residual), Bits(expected.residual)) << threads;
  }
}

TEST_P(ThreadsOf, AnyNumberOfThemDecodesTheSameValues) {
  const Codec& codec = GetCodec(GetParam());
  const Encoded encoded = Encode(GetParam(), UniformValues(kValues, 1));
  const std::vector<float> before = UniformValues(kValues, 3);
  std::vector<float> expected = before;
  DecodeJob whole = JobOf(GetParam(), encoded, expected);
  whole.add = 0.3f;
  codec.Decode(whole);
  for (int threads : {1, 2, 3, 7}) {
    std::vector<float> sum = before;
    whole.values = sum.data();
    RunOn(threads, codec, whole, [&](const DecodeJob& job) { codec.Decode(job); });
    EXPECT_EQ(Bits(sum), Bits(expected)) << threads;
  }
}

// All but the one whose scale is the whole chunk's, which is last.
INSTANTIATE_TEST_SUITE_P(Codecs, ThreadsOf,
                         ::testing::ValuesIn(std::begin(core::kAllCodecs), std::end(core::kAllCodecs) - 1),
                         [](const auto& test) { return CodecTestName(test.param); });

}  // namespace
}  // namespace causeway::codecs
