// The part of the CUDA backend that needs a GPU; the rest of the model is tested on the fake device.
#include "worker/device/cuda/cuda_backend.h"

#include <absl/status/status.h>
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/model_manifest.h"
#include "tests/worker/device/cuda/device_math_probe.h"
#include "tests/worker/device/fake_backend.h"
#include "tests/worker/model/test_values.h"
#include "worker/device/cuda/cublas_lt.h"
#include "worker/device/kernels/device_math.h"
#include "worker/parallel/llama_trainer.h"

namespace causeway::worker {
namespace {

using ::testing::HasSubstr;

TEST(CudaBackendTest, ALibraryThatIsMissingIsNamed) {
  const auto library = LoadCublasLt("/nowhere");
  EXPECT_EQ(library.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(library.status().message()), HasSubstr("expected libcublasLt.so."));
  EXPECT_THAT(std::string(library.status().message()), HasSubstr("/nowhere/"));
}

TEST(CudaBackendTest, ADeviceThatIsMissingIsNamed) {
  const auto backend = MakeCudaBackend(1000, {});
  EXPECT_THAT(std::string(backend.status().message()), HasSubstr("CUDA device"));
}

// Values of all sizes, of which exponents and significands are sampled alike.
std::vector<float> Sweep() {
  std::vector<float> values = {0.0f, 1.0f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::max()};
  for (uint32_t i = 0; i < 1u << 20; ++i) {
    const auto value = __builtin_bit_cast(float, static_cast<uint32_t>(core::SplitMix64(i)));
    if (std::isfinite(value)) values.push_back(value);
    values.push_back(static_cast<float>(i) * (180.0f / (1 << 20)) - 90.0f);
  }
  return values;
}

double Ulps(float got, float expected) {
  return std::abs(static_cast<double>(got) - expected) /
         (std::nextafter(std::abs(expected), HUGE_VALF) - std::abs(expected));
}

// The polynomial and ex2.approx are each within 2 units of e^x.
TEST(CudaBackendTest, TheDevicesFunctionsAreTheHostsToAFewUnitsInTheLastPlaceAndBfloat16ToTheBit) {
  const std::vector<float> x = Sweep();
  const DeviceMath math = ProbeDeviceMath(x);
  if (math.pairs.empty()) GTEST_SKIP() << "no device";
  double exponential = 0, reciprocal = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    exponential = std::max(exponential, Ulps(math.exponentials[i], Exponential(x[i])));
    const float exact = Reciprocal(x[i]);
    if (std::isnormal(x[i]) && std::isnormal(exact)) {
      reciprocal = std::max(reciprocal, Ulps(math.reciprocals[i], exact));
    }
    ASSERT_EQ(math.pairs[i], Bfloat16Pair(x[i], -x[i])) << x[i];
  }
  EXPECT_LE(exponential, 4);
  EXPECT_LE(reciprocal, 2);
}

absl::StatusOr<std::unique_ptr<Trainer>> OnDevice(const core::RunConfig& config, const TrainerFiles& files,
                                                  std::unique_ptr<ComputeBackend> backend,
                                                  const DeviceSettings& settings = {}) {
  return LlamaTrainer::Make(config, "eu", files, std::make_unique<DeviceRank>(std::move(backend), settings));
}

// A model as large as the quickstart's, in bfloat16.
TEST(CudaBackendTest, ItEvaluatesAsTheProcessor) {
  auto backend = MakeCudaBackend(0, {});
  if (absl::IsUnavailable(backend.status())) GTEST_SKIP() << backend.status();
  ASSERT_TRUE(backend.ok()) << backend.status();
  core::RunConfig config = TinyRun();
  config.llama.hidden_size = 128;
  config.llama.intermediate_size = 344;
  config.eval = {.every_rounds = 1, .held_out = 0.2, .batches = 4};
  const TrainerFiles files{.data_path = WriteTemporary("cuda_evaluation.txt", SmallText(20'000))};
  const auto on_cpu = MakeTrainer(config, "eu", files);
  const auto on_gpu = OnDevice(config, files, *std::move(backend), {.type = ValueType::kBfloat16});
  ASSERT_TRUE(on_cpu.ok() && on_gpu.ok()) << on_gpu.status();
  const core::Manifest manifest = core::LlamaManifest(config.llama);
  TensorValues values(manifest);
  InitializeLlama(config.llama, 3, values);
  const double expected = *(*on_cpu)->NewEvaluator()->Loss(values.View());
  const absl::StatusOr<double> loss = (*on_gpu)->NewEvaluator()->Loss(values.View());
  ASSERT_TRUE(loss.ok()) << loss.status();
  EXPECT_NEAR(*loss, expected, 1e-3 * expected);
}

TEST(CudaBackendTest, ItsLossIsTheCpusOverAHundredSteps) {
  auto backend = MakeCudaBackend(0, {});
  if (!backend.ok()) GTEST_SKIP() << backend.status();
  const core::RunConfig config = TinyRun();
  const std::string text = WriteTemporary("cuda_text.txt", SmallText(20'000));
  auto cpu = MakeTrainer(config, "eu", {.data_path = text});
  auto gpu = OnDevice(config, {.data_path = text}, *std::move(backend));
  ASSERT_TRUE(cpu.ok() && gpu.ok()) << cpu.status() << gpu.status();
  for (core::Step t = 1; t <= 100; ++t) {
    const auto expected = (*cpu)->Step(t), got = (*gpu)->Step(t);
    ASSERT_TRUE(expected.ok() && got.ok()) << expected.status() << got.status();
    ASSERT_NEAR(got->loss, expected->loss, 1e-4 * expected->loss) << "step " << t;
  }
}

TEST(CudaBackendTest, InBfloat16ItsLossIsThatOfTheFakeDevice) {
  auto backend = MakeCudaBackend(0, {});
  if (!backend.ok()) GTEST_SKIP() << backend.status();
  const core::RunConfig config = TinyRun();
  const std::string text = WriteTemporary("cuda_text.txt", SmallText(20'000));
  const DeviceSettings settings{.type = ValueType::kBfloat16};
  auto fake = OnDevice(config, {.data_path = text}, std::make_unique<FakeBackend>(), settings);
  auto gpu = OnDevice(config, {.data_path = text}, *std::move(backend), settings);
  ASSERT_TRUE(fake.ok() && gpu.ok()) << fake.status() << gpu.status();
  for (core::Step t = 1; t <= 20; ++t) {
    const auto expected = (*fake)->Step(t), got = (*gpu)->Step(t);
    ASSERT_TRUE(expected.ok() && got.ok()) << expected.status() << got.status();
    ASSERT_NEAR(got->loss, expected->loss, 1e-2 * expected->loss) << "step " << t;
  }
}

// All values of a product of ones of 64 × 64, to which a matrix of `addend` is added.
std::vector<float> ProductOfOnes(ComputeBackend& backend, bool in_place, float addend) {
  constexpr int64_t kSize = 64, kBytes = kSize * kSize * 4;
  Arena arena;
  const Arena::Place a = arena.Add("a", kBytes), c = arena.Add("c", kBytes), result = arena.Add("result", kBytes);
  offload::Device& device = backend.device();
  EXPECT_TRUE(arena.Allocate(device).ok());
  const std::vector<float> ones(kSize * kSize, 1.0f), added(kSize * kSize, addend);
  device.CopyToDevice(offload::Queue::kCompute, arena.At<float>(a), ones.data(), kBytes);
  device.CopyToDevice(offload::Queue::kCompute, arena.At<float>(c), added.data(), kBytes);
  const Arena::Place to = in_place ? c : result;
  backend.Gemm(offload::Queue::kCompute, {.m = kSize,
                                          .n = kSize,
                                          .k = kSize,
                                          .a = {arena.At<float>(a), kSize},
                                          .b = {arena.At<float>(a), kSize},
                                          .c = {arena.At<float>(to), kSize},
                                          .beta = 1,
                                          .addend = in_place ? nullptr : arena.At<float>(c)});
  std::vector<float> got(kSize * kSize);
  device.CopyToHost(offload::Queue::kCompute, got.data(), arena.At<float>(to), kBytes);
  const auto done = device.MakeEvent();
  device.Record(done, offload::Queue::kCompute);
  device.AwaitOnHost(done);
  EXPECT_TRUE(device.status().ok()) << device.status();
  return got;
}

TEST(CudaBackendTest, AProductIsAddedOnceThoughItsAlgorithmsAreTimedAndTheChoiceIsKept) {
  for (const bool times : {true, false}) {
    auto backend = MakeCudaBackend(0, {.directory = "", .times_products = times});
    if (!backend.ok()) GTEST_SKIP() << backend.status();
    EXPECT_THAT(ProductOfOnes(**backend, /*in_place=*/true, 3), ::testing::Each(67.0f));
    EXPECT_THAT(ProductOfOnes(**backend, /*in_place=*/false, 5), ::testing::Each(69.0f));
    const auto choices = (*backend)->product_choices();
    EXPECT_EQ(choices.empty(), !times);
    (*backend)->SetProductChoices(choices);
    EXPECT_THAT(ProductOfOnes(**backend, /*in_place=*/true, 4), ::testing::Each(68.0f));
    EXPECT_EQ((*backend)->product_choices(), choices);
  }
}

// out and dqkv of one attention, for values that both get.
std::vector<float> AttentionValues(const AttentionShape& shape, AttentionKind kind, ComputeBackend& backend) {
  const int64_t rows = shape.batch * shape.sequence, width = shape.heads * shape.head_size;
  const int64_t packed = width + 2 * shape.kv_heads * shape.head_size;
  const auto made = backend.MakeAttention(shape, ValueType::kBfloat16);
  EXPECT_TRUE(made.ok()) << made.status();
  DeviceAttention& attention = **made;
  EXPECT_EQ(attention.kind(), kind);
  Arena arena;
  const auto values = [&](int64_t count) { return arena.Add("values", count * 2); };
  const Arena::Place qkv = values(rows * packed), dqkv = values(rows * packed), out = values(rows * width),
                     dout = values(rows * width), statistics = arena.Add("", attention.statistics() * 4),
                     buffer = arena.Add("", attention.buffer_bytes());
  offload::Device& device = backend.device();
  EXPECT_TRUE(arena.Allocate(device).ok());
  attention.SetBuffer(arena.At<char>(buffer));
  std::vector<Bfloat16> given;
  for (int64_t i = 0; i < rows * packed; ++i) {
    given.push_back({core::ToBfloat16(static_cast<float>(core::SplitMix64(i) % 2000) / 1000 - 1)});
  }
  device.CopyToDevice(offload::Queue::kCompute, arena.At<char>(qkv), given.data(), rows * packed * 2);
  device.CopyToDevice(offload::Queue::kCompute, arena.At<char>(dout), given.data(), rows * width * 2);
  attention.Forward(arena.At<char>(qkv), arena.At<char>(out), arena.At<float>(statistics));
  attention.Backward(arena.At<char>(qkv), arena.At<char>(out), arena.At<float>(statistics), arena.At<char>(dout),
                     arena.At<char>(dqkv));
  std::vector<Bfloat16> got(rows * (width + packed));
  device.CopyToHost(offload::Queue::kCompute, got.data(), arena.At<char>(out), rows * width * 2);
  device.CopyToHost(offload::Queue::kCompute, got.data() + rows * width, arena.At<char>(dqkv), rows * packed * 2);
  const auto done = device.MakeEvent();
  device.Record(done, offload::Queue::kCompute);
  device.AwaitOnHost(done);
  EXPECT_TRUE(device.status().ok()) << device.status();
  std::vector<float> floats;
  for (const Bfloat16 value : got) floats.push_back(core::FromBfloat16(value.bits));
  return floats;
}

TEST(CudaBackendTest, AttentionByCudnnIsThatByProducts) {
  const AttentionShape shape{.batch = 2, .sequence = 100, .heads = 4, .kv_heads = 2, .head_size = 64};
  auto with = MakeCudaBackend(0, {.directory = "", .attention = AttentionKind::kCudnn});
  auto without = MakeCudaBackend(0, {.directory = "", .attention = AttentionKind::kOwn});
  if (!with.ok() || !without.ok()) GTEST_SKIP() << with.status();
  if (const auto made = (*with)->MakeAttention(shape, ValueType::kBfloat16); absl::IsUnavailable(made.status())) {
    GTEST_SKIP() << made.status();  // a build without cuDNN's
  }
  const auto got = AttentionValues(shape, AttentionKind::kCudnn, **with);
  const auto expected = AttentionValues(shape, AttentionKind::kOwn, **without);
  double difference = 0, norm = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    difference += std::pow(got[i] - expected[i], 2);
    norm += std::pow(expected[i], 2);
  }
  EXPECT_LE(std::sqrt(difference / norm), 1e-2);
}

}  // namespace
}  // namespace causeway::worker
