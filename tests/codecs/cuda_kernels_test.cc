// The CUDA kernels' own text on threads of a CPU (tests/codecs/simt.h), against the scalar reference. On a GPU
// tests/bench/cuda_codecs checks the same.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/codecs/simt.h"
// After simt.h, which it needs.
#include "codecs/cuda/topk_kernel.h"
#include "core/layout.h"
#include "tests/codecs/test_values.h"

namespace causeway::codecs::cuda {
namespace {

using core::CodecId;

constexpr Rotation kRotation = {0x1234567890abcdef, 48};
constexpr unsigned long long kNone = ~0ull;

template <class K, CodecId kCodec>
struct Kernel {
  using Type = K;
  static constexpr CodecId kId = kCodec;
};

template <class K>
class CudaKernels : public ::testing::Test {
 protected:
  static const Codec& Reference() { return GetCodec(K::kId, Target::kScalar); }
  static int64_t WholeBlocks(int64_t count) { return core::BlocksFor(count) * core::kBlockValues; }

  // Blocks of magnitudes apart, zeros of both signs, a block of denormals.
  static std::vector<float> Input(int64_t count, uint64_t seed) {
    std::vector<float> values = UniformValues(count, seed);
    for (int64_t i = 0; i < count; ++i) values[i] = std::ldexp(values[i], static_cast<int>(i / 256 % 40) - 20);
    for (int64_t i = 0; i < count; i += 97) values[i] = i % 2 == 0 ? 0.0f : -0.0f;
    if (count > 600) std::fill_n(values.begin() + 256, 256, 1e-41f);
    return values;
  }

  // Chunks begin on a line.
  struct Payload {
    explicit Payload(int64_t count)
        : lines(core::UnitsFor(count) * 4096 * 4 / 64 + 1), scale_lines(core::UnitsFor(count) + 1) {}
    struct alignas(64) Line {
      uint8_t bytes[64] = {};
    };
    std::vector<Line> lines, scale_lines;
    uint8_t* codes() { return lines.front().bytes; }
    uint8_t* scales() { return scale_lines.front().bytes; }
    std::vector<uint8_t> Bytes(int64_t count) {
      std::vector<uint8_t> bytes(scales(), scales() + Reference().ScaleBytes(count));
      bytes.insert(bytes.end(), codes(), codes() + Reference().CodeBytes(count));
      return bytes;
    }
  };

  static unsigned long long EncodeOnThreads(const EncodeJob& job) {
    unsigned long long bad = kNone;
    const bool rotate = job.rotation.has_value();
    const EncodeTask task = {.job = job,
                             .blocks = core::BlocksFor(job.count),
                             .rotate = rotate,
                             .rotation = job.rotation.value_or(Rotation{}),
                             .whole_blocks = Reference().rotates(),
                             .in_domain = Reference().rotates() && !rotate,
                             .bad_block = &bad};
    simt::RunGrid(static_cast<int>(core::UnitsFor(job.count)), kThreads, [&] { EncodeUnits<typename K::Type>(task); });
    return bad;
  }

  static void DecodeOnThreads(const DecodeJob& job) {
    const bool rotate = job.rotation.has_value();
    const DecodeTask task = {.job = job,
                             .blocks = core::BlocksFor(job.count),
                             .rotate = rotate,
                             .rotation = job.rotation.value_or(Rotation{}),
                             .whole_blocks = Reference().rotates() && !rotate,
                             .add = job.add.has_value(),
                             .weight = job.add.value_or(0.0f)};
    simt::RunGrid(static_cast<int>(core::UnitsFor(job.count)), kThreads, [&] { DecodeUnits<typename K::Type>(task); });
  }

  static EncodeJob JobFor(int64_t count, bool in_domain, Payload& payload) {
    EncodeJob job = {.count = count, .scales = payload.scales(), .codes = payload.codes()};
    if (Reference().rotates() && !in_domain) job.rotation = kRotation;
    return job;
  }
};

using Lane = simd::HalfWarp;
using AllKernels = ::testing::Types<
    Kernel<simd::Float32Kernel<Lane>, CodecId::kFloat32>, Kernel<simd::Bfloat16Kernel<Lane>, CodecId::kBfloat16>,
    Kernel<simd::Int8Kernel<Lane>, CodecId::kInt8>, Kernel<simd::Int4Kernel<Lane>, CodecId::kInt4>,
    Kernel<simd::E3m0Kernel<Lane>, CodecId::kE3m0>, Kernel<simd::SignKernel<Lane, simd::kMaxExponent>, CodecId::kSign>,
    Kernel<simd::SignKernel<Lane, simd::kMaxRotatedExponent>, CodecId::kRotatedSign>,
    Kernel<simd::LloydMax2Kernel<Lane>, CodecId::kRotatedLm2>,
    Kernel<simd::LloydMax4Kernel<Lane>, CodecId::kRotatedLm4>>;

struct NamesOfKernels {
  template <class K>
  static std::string GetName(int) {
    return core::CodecName(K::kId);
  }
};

TYPED_TEST_SUITE(CudaKernels, AllKernels, NamesOfKernels);

TYPED_TEST(CudaKernels, GiveTheBytesAndTheResidualOfTheReference) {
  using Payload = typename TestFixture::Payload;
  for (int64_t count : {300, 4097}) {
    for (bool in_domain : {false, true}) {
      if (in_domain && !TestFixture::Reference().rotates()) continue;
      for (bool feedback : {false, true}) {
        const int64_t whole = TestFixture::WholeBlocks(count);
        const std::vector<float> values = TestFixture::Input(whole, 1);
        std::vector<float> residual = TestFixture::Input(whole, 2);
        if (!TestFixture::Reference().rotates()) std::fill(residual.begin() + count, residual.end(), 0.0f);
        std::vector<float> expected_residual = residual;
        Payload got(count), expected(count);
        const auto encode = [&](Payload& payload, std::vector<float>& e, auto run) {
          EncodeJob job = TestFixture::JobFor(count, in_domain, payload);
          job.values = values.data();
          if (feedback) {
            job.beta = 0.9f;
            job.gain = 1.25f;
            job.residual = job.next_residual = e.data();
          }
          run(job);
        };
        encode(got, residual, [](const EncodeJob& job) { EXPECT_EQ(TestFixture::EncodeOnThreads(job), kNone); });
        encode(expected, expected_residual,
               [](const EncodeJob& job) { EXPECT_TRUE(TestFixture::Reference().Encode(job)); });
        EXPECT_EQ(got.Bytes(count), expected.Bytes(count)) << count << " values, feedback " << feedback;
        EXPECT_EQ(Bits(residual), Bits(expected_residual)) << count << " values, feedback " << feedback;
      }
    }
  }
}

TYPED_TEST(CudaKernels, DecodeAndAddToTheBitsOfTheReference) {
  using Payload = typename TestFixture::Payload;
  for (int64_t count : {300, 4097}) {
    for (bool in_domain : {false, true}) {
      if (in_domain && !TestFixture::Reference().rotates()) continue;
      const int64_t whole = TestFixture::WholeBlocks(count);
      const std::vector<float> values = TestFixture::Input(whole, 1);
      Payload payload(count);
      EncodeJob encode = TestFixture::JobFor(count, in_domain, payload);
      encode.values = values.data();
      ASSERT_TRUE(TestFixture::Reference().Encode(encode));
      for (const std::optional<float> add : {std::optional<float>(), std::optional<float>(0.3f)}) {
        std::vector<float> got = UniformValues(whole, 3), expected = got;
        DecodeJob job = {.scales = payload.scales(),
                         .codes = payload.codes(),
                         .rotation = encode.rotation,
                         .values = got.data(),
                         .count = count,
                         .add = add};
        TestFixture::DecodeOnThreads(job);
        job.values = expected.data();
        TestFixture::Reference().Decode(job);
        EXPECT_EQ(Bits(got), Bits(expected)) << count << " values, add " << add.has_value();
      }
    }
  }
}

TYPED_TEST(CudaKernels, NameTheFirstBlockThatIsOutOfRangeOrBringItIntoRange) {
  typename TestFixture::Payload payload(2000), expected(2000);
  std::vector<float> values = UniformValues(2048, 1);
  values[1999] = std::numeric_limits<float>::infinity();
  values[800] = std::numeric_limits<float>::quiet_NaN();
  EncodeJob job = TestFixture::JobFor(2000, false, payload);
  job.values = values.data();
  EXPECT_EQ(TestFixture::EncodeOnThreads(job), 800u / 256);
  values[800] = -0x1p120f;
  values[1999] = 0x1p110f;
  job.saturate = true;
  EXPECT_EQ(TestFixture::EncodeOnThreads(job), kNone);
  EncodeJob on_cpu = job;
  on_cpu.scales = expected.scales();
  on_cpu.codes = expected.codes();
  EXPECT_TRUE(TestFixture::Reference().Encode(on_cpu));
  EXPECT_EQ(payload.Bytes(2000), expected.Bytes(2000));
}

// Equal magnitudes, fewer values than entries, zeros alone, a unit that is cut short, feedback, values out of range.
template <typename Id>
class TopkKernel : public testing::Test {};
template <CodecId kId>
using OfFamily = std::integral_constant<CodecId, kId>;
using TopkIds = testing::Types<OfFamily<CodecId::kTopk32>, OfFamily<CodecId::kTopk>, OfFamily<CodecId::kTopk128>,
                               OfFamily<CodecId::kTopk256>, OfFamily<CodecId::kTopk512>>;
TYPED_TEST_SUITE(TopkKernel, TopkIds);

TYPED_TEST(TopkKernel, GivesTheBytesAndTheResidualOfTheReference) {
  constexpr int kEntries = core::TopkEntries(TypeParam::value);
  const Codec& reference = GetCodec(TypeParam::value, Target::kScalar);
  struct alignas(64) Bytes {
    uint8_t codes[3 * TopkCodeBytes(kEntries) + 64] = {}, scales[64] = {};
  };
  const auto filled = [](int64_t count, auto value) {
    std::vector<float> values(count);
    for (int64_t i = 0; i < count; ++i) values[i] = value(i);
    return values;
  };
  const std::vector<float> spread = UniformValues(9000, 1);
  const std::vector<std::vector<float>> inputs = {
      spread,
      filled(4096, [](int64_t i) { return i % 3 == 0 ? -1.0f : 1.0f; }),
      filled(5000, [](int64_t i) { return i % 100 == 7 ? static_cast<float>(i) : 0.0f; }),
      filled(4100, [&](int64_t i) { return std::ldexp(spread[i], static_cast<int>(i % 60) - 120); }),
      filled(300, [](int64_t i) { return i == 299 ? 0.25f : -0.0f; }),
      filled(1, [](int64_t) { return 0.0f; }),
      filled(70, [&](int64_t i) { return std::round(4 * spread[i]); })};
  for (const std::vector<float>& values : inputs) {
    const auto count = static_cast<int64_t>(values.size());
    for (const bool feedback : {false, true}) {
      const std::vector<float> theta = UniformValues(count, 5);
      std::vector<float> residual = UniformValues(count, 2), expected_residual = residual, difference = values;
      for (int64_t i = 0; i < count; ++i) difference[i] -= theta[i];
      Bytes got, expected;
      const auto job_for = [&](Bytes& bytes, std::vector<float>& e) {
        EncodeJob job = {.values = values.data(), .count = count, .scales = bytes.scales, .codes = bytes.codes};
        if (feedback)
          job = {.values = values.data(),
                 .count = count,
                 .beta = 0.9f,
                 .residual = e.data(),
                 .next_residual = e.data(),
                 .subtract = theta.data(),
                 .scales = bytes.scales,
                 .codes = bytes.codes};
        return job;
      };
      unsigned long long bad = kNone;
      const EncodeTask task = {.job = job_for(got, residual), .blocks = core::BlocksFor(count), .bad_block = &bad};
      simt::RunGrid(static_cast<int>(core::UnitsFor(count)), kThreads, [&] { EncodeTopk<kEntries>(task); });
      EncodeJob on_cpu = job_for(expected, expected_residual);
      if (feedback) on_cpu.values = difference.data();
      on_cpu.subtract = nullptr;
      ASSERT_TRUE(reference.Encode(on_cpu));
      EXPECT_EQ(bad, kNone);
      EXPECT_TRUE(std::ranges::equal(got.codes, expected.codes)) << count << " values, feedback " << feedback;
      EXPECT_TRUE(std::ranges::equal(got.scales, expected.scales)) << count << " values, feedback " << feedback;
      EXPECT_EQ(Bits(residual), Bits(expected_residual)) << count << " values, feedback " << feedback;
    }
  }
  std::vector<float> values = UniformValues(5000, 1);
  values[4700] = std::numeric_limits<float>::infinity();
  Bytes bytes;
  unsigned long long bad = kNone;
  const EncodeTask task = {
      .job = {.values = values.data(), .count = 5000, .scales = bytes.scales, .codes = bytes.codes}, .bad_block = &bad};
  simt::RunGrid(2, kThreads, [&] { EncodeTopk<kEntries>(task); });
  EXPECT_EQ(bad, 4700u / kBlock);
}

}  // namespace
}  // namespace causeway::codecs::cuda
