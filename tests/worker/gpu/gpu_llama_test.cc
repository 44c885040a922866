#include "worker/gpu/gpu_llama.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>

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

Pass OnCpu(const Case& c) {
  Setting s(c);
  LlamaModel model(c.llama, c.rows, c.llama.max_position_embeddings, LlamaModel::Use::kTraining);
  const double loss = model.Forward(s.parameters.View(), s.batch);
  model.Backward(s.parameters.View(), s.batch, s.gradients.MutableView(), 0.5f);
  return {loss, {s.gradients.Flat().begin(), s.gradients.Flat().end()}};
}

Pass OnFake(const Case& c, uint64_t seed) {
  Setting s(c);
  FakeBackend backend(seed);
  auto llama = GpuLlama::Make(c.llama, c.rows, c.llama.max_position_embeddings, &backend);
  EXPECT_TRUE(llama.ok()) << llama.status();
  (*llama)->Begin(s.batch);
  (*llama)->Forward(s.parameters.Flat().data());
  (*llama)->Backward(s.parameters.Flat().data(), s.gradients.Flat().data(), 0.5f);
  offload::Device& device = backend.device();
  const auto done = device.MakeEvent();
  device.Record(done, offload::Queue::kCompute);
  device.AwaitOnHost(done);
  const auto loss = (*llama)->Loss();
  EXPECT_TRUE(loss.ok()) << loss.status();
  return {*loss, {s.gradients.Flat().begin(), s.gradients.Flat().end()}};
}

class GpuLlamaTest : public ::testing::TestWithParam<Case> {};

TEST_P(GpuLlamaTest, LossAndGradientsAreThoseOfTheCpusModel) {
  const Pass cpu = OnCpu(GetParam()), fake = OnFake(GetParam(), 0);
  EXPECT_NEAR(fake.loss, cpu.loss, 1e-5 * cpu.loss);
  const core::Manifest manifest = core::LlamaManifest(GetParam().llama);
  size_t first = 0;
  for (const core::TensorSpec& spec : manifest) {
    double difference = 0, norm = 0;
    for (size_t i = first; i < first + spec.NumValues(); ++i) {
      difference += std::pow(static_cast<double>(fake.gradients[i]) - cpu.gradients[i], 2);
      norm += std::pow(static_cast<double>(cpu.gradients[i]), 2);
    }
    EXPECT_GT(norm, 0) << spec.name;
    EXPECT_LE(std::sqrt(difference), 1e-5 * std::sqrt(norm)) << spec.name;
    first += spec.NumValues();
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

TEST(GpuLlamaTest, SaysWhatItsArenaHolds) {
  FakeBackend backend;
  const auto llama = GpuLlama::Make(TinyLlama(), 2, 12, &backend);
  ASSERT_TRUE(llama.ok());
  EXPECT_THAT((*llama)->arena().Description(), ::testing::HasSubstr("activations"));
  EXPECT_GT((*llama)->arena().bytes(), 24 * 256 * 4);
}

}  // namespace
}  // namespace causeway::worker
