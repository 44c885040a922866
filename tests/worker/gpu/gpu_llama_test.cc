#include "worker/gpu/gpu_llama.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/model_manifest.h"
#include "tests/worker/train/test_values.h"
#include "worker/gpu/fake_backend.h"

namespace causeway::worker {
namespace {

struct Case {
  std::string name;
  core::LlamaConfig llama;
  int64_t rows = 3;
};

Case Tied() { return {"tied", TinyLlama()}; }
Case OwnHead() {
  Case other{"own_head", TinyLlama()};
  other.llama.tie_word_embeddings = false;
  return other;
}
Case OneRowWide() {
  return {"one_row_wide",
          {.hidden_size = 192,
           .intermediate_size = 131,
           .num_hidden_layers = 1,
           .num_attention_heads = 3,
           .num_key_value_heads = 1,
           .vocab_size = 300,
           .max_position_embeddings = 5},
          1};
}

Batch BatchOf(const Case& c) {
  Batch batch;
  for (int64_t i = 0; i < c.rows * c.llama.max_position_embeddings; ++i) {
    batch.tokens.push_back(static_cast<int32_t>(core::SplitMix64(i) % 40 % c.llama.vocab_size));  // some occur often
    batch.targets.push_back(static_cast<int32_t>(core::SplitMix64(i + 1000) % c.llama.vocab_size));
  }
  return batch;
}

struct Pass {
  double loss = 0;
  std::vector<float> gradients;
};

struct Setting {
  explicit Setting(const Case& c)
      : manifest(core::LlamaManifest(c.llama)), parameters(manifest), gradients(manifest), batch(BatchOf(c)) {
    InitializeLlama(c.llama, 1, parameters);
  }
  core::Manifest manifest;
  TensorValues parameters, gradients;
  Batch batch;
};

// `rounded`: with the parameters that a bfloat16 model has.
Pass OnCpu(const Case& c, bool rounded = false) {
  Setting s(c);
  for (float& value : s.parameters.Flat()) value = rounded ? core::FromBfloat16(core::ToBfloat16(value)) : value;
  LlamaModel model(c.llama, c.rows, c.llama.max_position_embeddings, LlamaModel::Use::kTraining);
  const double loss = model.Forward(s.parameters.View(), s.batch);
  model.Backward(s.parameters.View(), s.batch, s.gradients.MutableView(), 0.5f);
  return {loss, {s.gradients.Flat().begin(), s.gradients.Flat().end()}};
}

Pass OnFake(const Case& c, uint64_t seed, ValueType type = ValueType::kFloat32,
            Recompute recompute = Recompute::kNone) {
  Setting s(c);
  FakeBackend backend(seed);
  auto llama = GpuLlama::Make(
      c.llama,
      {.batch_rows = c.rows, .sequence = c.llama.max_position_embeddings, .type = type, .recompute = recompute},
      &backend);
  EXPECT_TRUE(llama.ok()) << llama.status();
  std::vector<uint16_t> narrow;
  for (const float value : s.parameters.Flat()) narrow.push_back(core::ToBfloat16(value));
  const void* const parameters =
      type == ValueType::kFloat32 ? static_cast<const void*>(s.parameters.Flat().data()) : narrow.data();
  (*llama)->Begin(s.batch);
  (*llama)->Forward(parameters);
  (*llama)->Backward(parameters, s.gradients.Flat().data(), 0.5f);
  offload::Device& device = backend.device();
  const auto done = device.MakeEvent();
  device.Record(done, offload::Queue::kCompute);
  device.AwaitOnHost(done);
  const auto loss = (*llama)->Loss();
  EXPECT_TRUE(loss.ok()) << loss.status();
  return {*loss, {s.gradients.Flat().begin(), s.gradients.Flat().end()}};
}

// ‖a − b‖ ≤ share · ‖b‖ for each tensor.
void ExpectNear(const Case& c, const std::vector<float>& a, const std::vector<float>& b, double share) {
  size_t first = 0;
  for (const core::TensorSpec& spec : core::LlamaManifest(c.llama)) {
    double difference = 0, norm = 0;
    for (size_t i = first; i < first + spec.NumValues(); ++i) {
      difference += std::pow(static_cast<double>(a[i]) - b[i], 2);
      norm += std::pow(static_cast<double>(b[i]), 2);
    }
    EXPECT_GT(norm, 0) << spec.name;
    EXPECT_LE(std::sqrt(difference / norm), share) << spec.name;
    first += spec.NumValues();
  }
}

class GpuLlamaTest : public ::testing::TestWithParam<Case> {};

TEST_P(GpuLlamaTest, LossAndGradientsAreThoseOfTheCpusModel) {
  const Pass cpu = OnCpu(GetParam()), fake = OnFake(GetParam(), 0);
  EXPECT_NEAR(fake.loss, cpu.loss, 1e-5 * cpu.loss);
  ExpectNear(GetParam(), fake.gradients, cpu.gradients, 1e-5);
}

TEST_P(GpuLlamaTest, InBfloat16GradientsAreWithinAHundredthOfTheirNorm) {
  const Pass cpu = OnCpu(GetParam(), /*rounded=*/true), fake = OnFake(GetParam(), 0, ValueType::kBfloat16);
  EXPECT_NEAR(fake.loss, cpu.loss, 1e-2 * cpu.loss);
  ExpectNear(GetParam(), fake.gradients, cpu.gradients, 1e-2);
}

TEST_P(GpuLlamaTest, RecomputationChangesNoBit) {
  for (const ValueType type : {ValueType::kFloat32, ValueType::kBfloat16}) {
    const Pass kept = OnFake(GetParam(), 0, type);
    for (const Recompute recompute : {Recompute::kNormSwiglu, Recompute::kBlock}) {
      const Pass made_again = OnFake(GetParam(), 0, type, recompute);
      EXPECT_EQ(made_again.loss, kept.loss);
      EXPECT_TRUE(made_again.gradients == kept.gradients) << RecomputeName(recompute);
    }
  }
}

TEST_P(GpuLlamaTest, NoOrderOfQueuesAndLanesChangesABit) {
  const Pass ascending = OnFake(GetParam(), 0);
  for (const uint64_t seed : {1, 2, 3, 6, 7}) {
    const Pass other = OnFake(GetParam(), seed);
    EXPECT_EQ(other.loss, ascending.loss) << seed;
    EXPECT_TRUE(other.gradients == ascending.gradients) << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, GpuLlamaTest, ::testing::Values(Tied(), OwnHead(), OneRowWide()),
                         [](const auto& info) { return info.param.name; });

TEST(GpuLlamaMemoryTest, RecomputationNeedsLessOfItAndTheArenaSaysWhatItHolds) {
  FakeBackend backend;
  int64_t before = std::numeric_limits<int64_t>::max();
  for (const Recompute recompute : kAllRecompute) {
    const auto llama = GpuLlama::Make(TinyLlama(), {.batch_rows = 8, .sequence = 12, .recompute = recompute}, &backend);
    ASSERT_TRUE(llama.ok());
    EXPECT_LT((*llama)->arena().bytes(), before) << RecomputeName(recompute);
    before = (*llama)->arena().bytes();
    EXPECT_THAT((*llama)->arena().Description(), ::testing::HasSubstr("activations"));
  }
}

}  // namespace
}  // namespace causeway::worker
