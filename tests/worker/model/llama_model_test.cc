#include "worker/model/llama_model.h"

#include "core/model_manifest.h"
#include "tests/worker/model/test_values.h"

namespace causeway::worker {
namespace {

constexpr int64_t kBatchRows = 2;

Batch RandomBatch(const core::LlamaConfig& config) {
  Batch batch;
  for (int64_t i = 0; i < kBatchRows * config.max_position_embeddings; ++i) {
    batch.tokens.push_back(static_cast<int32_t>(core::HashCombine(1, i) % config.vocab_size));
    batch.targets.push_back(static_cast<int32_t>(core::HashCombine(2, i) % config.vocab_size));
  }
  return batch;
}

// Weights as large as after some training, so that no gradient is lost in rounding.
TensorValues LargeWeights(const core::LlamaConfig& config) {
  const core::Manifest manifest = core::LlamaManifest(config);
  TensorValues weights(manifest);
  for (int i = 0; i < weights.size(); ++i) FillNormal(5, manifest[i].name, 0.4, weights[i]);
  return weights;
}

// The loss's slope along the gradient of each tensor must be the gradient's squared length: one difference quotient
// tests all values of a tensor at once.
void ExpectModelGradients(const core::LlamaConfig& config) {
  const core::Manifest manifest = core::LlamaManifest(config);
  const Batch batch = RandomBatch(config);
  TensorValues weights = LargeWeights(config);
  TensorValues gradients(manifest);
  LlamaModel model(config, kBatchRows, config.max_position_embeddings, LlamaModel::Use::kTraining);
  model.Forward(weights.View(), batch);
  model.Backward(weights.View(), batch, gradients.MutableView());
  for (int i = 0; i < weights.size(); ++i) {
    const double length = std::sqrt(Dot(gradients[i], gradients[i]));
    ASSERT_GT(length, 1e-3) << manifest[i].name;
    const std::vector<float> kept(weights[i].begin(), weights[i].end());
    const auto loss_at = [&](double shift) {
      for (size_t j = 0; j < kept.size(); ++j) {
        weights[i][j] = static_cast<float>(kept[j] + shift * gradients[i][j] / length);
      }
      return model.Forward(weights.View(), batch);
    };
    constexpr double h = 0.02;
    const double slope = (8 * (loss_at(h) - loss_at(-h)) - (loss_at(2 * h) - loss_at(-2 * h))) / (12 * h);
    loss_at(0);
    EXPECT_NEAR(slope / length, 1, 1e-3) << manifest[i].name;
  }
}

TEST(LlamaModel, GradientsMatchDifferencesWithATiedHeadAndGroupedKeyHeads) {
  core::LlamaConfig config = TinyLlama();
  config.vocab_size = 20;
  ExpectModelGradients(config);
}

TEST(LlamaModel, GradientsMatchDifferencesWithAnUntiedHead) {
  core::LlamaConfig config = TinyLlama();
  config.vocab_size = 20;
  config.num_key_value_heads = 4;
  config.tie_word_embeddings = false;
  ExpectModelGradients(config);
}

TEST(LlamaModel, WeightGradientsOfABlockMayComeAfterAllInputGradients) {
  const core::LlamaConfig config = TinyLlama();
  const core::Manifest manifest = core::LlamaManifest(config);
  const LlamaShape shape(config, kBatchRows, config.max_position_embeddings);
  const Rope rope(config.max_position_embeddings, RopeFrequencies(shape.attention.head_size, config.rope_theta, {}));
  TensorValues weights = LargeWeights(config);
  const Tensors view = weights.View();
  const BlockWeights block_weights = std::span(view).subspan(1, kBlockTensors);

  BlockActivations activations(shape);
  const std::vector<float> input = RandomValues(1, shape.rows() * shape.hidden);
  const std::vector<float> doutput = RandomValues(2, input.size());
  std::ranges::copy(input, activations.input.begin());
  std::vector<float> output(input.size()), dinput(input.size());
  const auto f = [&] {
    BlockForward(shape, rope, block_weights, activations, output.data());
    return Dot(output, doutput);
  };
  f();
  BlockGradients gradients(shape);
  BlockBackwardInput(shape, rope, block_weights, activations, doutput.data(), gradients, dinput.data());
  TensorValues dweights(manifest);
  BlockBackwardWeight(shape, activations, doutput.data(), gradients,
                      std::span(dweights.MutableView()).subspan(1, kBlockTensors));
  ExpectGradient("dinput", dinput, activations.input, f, 5e-3);
  for (int i = 1; i <= kBlockTensors; ++i) ExpectGradient(manifest[i].name.c_str(), dweights[i], weights[i], f, 5e-3);
}

TEST(LlamaModel, ManifestHasHuggingFacesNamesInItsOrder) {
  core::LlamaConfig config = TinyLlama();
  config.tie_word_embeddings = false;
  const core::Manifest manifest = core::LlamaManifest(config);
  ASSERT_EQ(manifest.size(), 1u + 2 * 9 + 2);
  EXPECT_EQ(core::Describe(manifest[0]), "model.embed_tokens.weight [256,16] embedding");
  EXPECT_EQ(manifest[0].layer, core::kNoLayer);
  EXPECT_EQ(core::Describe(manifest[2]), "model.layers.0.self_attn.k_proj.weight [8,16] matrix of layer 0");
  EXPECT_EQ(core::Describe(manifest[7]), "model.layers.0.mlp.down_proj.weight [16,24] matrix of layer 0");
  EXPECT_EQ(core::Describe(manifest[17]), "model.layers.1.input_layernorm.weight [16] norm of layer 1");
  EXPECT_EQ(core::Describe(manifest[19]), "model.norm.weight [16] norm");
  EXPECT_EQ(manifest[19].layer, core::kNoLayer);
  EXPECT_EQ(core::Describe(manifest[20]), "lm_head.weight [256,16] head");
}

TEST(LlamaModel, ForwardOnlyModelGivesTheLossOfATrainingOne) {
  const core::LlamaConfig config = TinyLlama();
  const TensorValues weights = LargeWeights(config);
  const Batch batch = RandomBatch(config);
  LlamaModel training(config, kBatchRows, config.max_position_embeddings, LlamaModel::Use::kTraining);
  LlamaModel forward(config, kBatchRows, config.max_position_embeddings, LlamaModel::Use::kForwardOnly);
  EXPECT_EQ(training.Forward(weights.View(), batch), forward.Forward(weights.View(), batch));
}

TEST(LlamaModel, ATensorsStartDependsOnSeedAndNameOnly) {
  core::LlamaConfig small = TinyLlama(), deep = TinyLlama();
  deep.tie_word_embeddings = false;
  TensorValues a(core::LlamaManifest(small)), b(core::LlamaManifest(deep)), other(core::LlamaManifest(small));
  InitializeLlama(small, 1, a);
  InitializeLlama(deep, 1, b);
  InitializeLlama(small, 2, other);
  for (int i = 0; i < a.size(); ++i) EXPECT_TRUE(std::ranges::equal(a[i], b[i])) << i;
  EXPECT_FALSE(std::ranges::equal(a[0], other[0]));
  EXPECT_EQ(a[8][0], 1.0f);  // norms
  EXPECT_NEAR(std::sqrt(Dot(a[0], a[0]) / static_cast<double>(a[0].size())), 0.02, 1e-3);
  EXPECT_NEAR(std::sqrt(Dot(a[7], a[7]) / static_cast<double>(a[7].size())), 0.02 / 2, 1e-3);  // down_proj, √(2·2)
}

}  // namespace
}  // namespace causeway::worker
