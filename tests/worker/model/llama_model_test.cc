#include "worker/model/llama_model.h"

#include <gtest/gtest.h>

#include <numeric>

#include "core/model_manifest.h"
#include "plan/pipeline_planner.h"
#include "tests/worker/model/test_values.h"
#include "worker/device/vector_math.h"
#include "worker/model/llama_layers.h"
#include "worker/model/stage_profile.h"

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

TEST(StageProfile, ThePlannerReadsItAndEveryPartTakesTime) {
  core::RunConfig config = TinyRun();
  const auto json = ProfileStages(config, /*passes=*/3);
  ASSERT_TRUE(json.ok()) << json.status();
  const auto costs = plan::ReadPipelineCosts(*json, "profile");
  ASSERT_TRUE(costs.ok()) << costs.status() << *json;
  EXPECT_EQ(costs->layers, config.llama.num_hidden_layers);
  for (const int64_t time : {costs->layer.forward, costs->layer.input, costs->layer.weight, costs->head.forward,
                             costs->head.input, costs->head.weight}) {
    EXPECT_GT(time, 0) << *json;
  }
  EXPECT_GT(costs->layer_bytes, costs->message_bytes);
  config.model_kind = core::ModelKind::kSynthetic;
  EXPECT_EQ(ProfileStages(config).status().code(), absl::StatusCode::kInvalidArgument);
}

constexpr int64_t kRows = 5;
constexpr int64_t kIn = 7;
constexpr int64_t kOut = 11;

TEST(VectorMath, FastExpIsWithin2e7OfExp) {
  for (double x = -86; x < 86; x += 0.0137) {
    const float argument = static_cast<float>(x);
    const double exact = std::exp(static_cast<double>(argument));
    EXPECT_NEAR(FastExp(argument) / exact, 1, 2e-7) << argument;
  }
  EXPECT_EQ(FastExp(0.0f), 1.0f);
  EXPECT_LT(FastExp(-1000.0f), 1e-37f);
  EXPECT_TRUE(std::isnan(FastExp(std::nanf(""))));
}

TEST(Linear, MatchesItsDefinition) {
  const std::vector<float> x = RandomValues(1, kRows * kIn);
  const std::vector<float> w = RandomValues(2, kOut * kIn);
  std::vector<float> y(kRows * kOut);
  Linear(kRows, kIn, kOut, x.data(), w.data(), y.data());
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t o = 0; o < kOut; ++o) {
      EXPECT_NEAR(y[row * kOut + o], Dot({&x[row * kIn], kIn}, {&w[o * kIn], kIn}), 1e-6);
    }
  }
}

TEST(Linear, InputAndWeightGradientsMatchDifferencesEachCalledAlone) {
  std::vector<float> x = RandomValues(1, kRows * kIn);
  std::vector<float> w = RandomValues(2, kOut * kIn);
  const std::vector<float> dy = RandomValues(3, kRows * kOut);
  std::vector<float> y(dy.size()), dx(x.size()), dw(w.size());
  const auto f = [&] {
    Linear(kRows, kIn, kOut, x.data(), w.data(), y.data());
    return Dot(y, dy);
  };
  LinearBackwardInput(kRows, kIn, kOut, dy.data(), w.data(), dx.data());
  ExpectGradient("dx", dx, x, f);
  LinearBackwardWeight(kRows, kIn, kOut, dy.data(), x.data(), dw.data());
  ExpectGradient("dw", dw, w, f);
}

TEST(Linear, WeightGradientsAddUpOverCalls) {
  const std::vector<float> x = RandomValues(1, kRows * kIn), dy = RandomValues(3, kRows * kOut);
  std::vector<float> once(kOut * kIn), twice(kOut * kIn);
  LinearBackwardWeight(kRows, kIn, kOut, dy.data(), x.data(), once.data());
  LinearBackwardWeight(kRows, kIn, kOut, dy.data(), x.data(), twice.data());
  LinearBackwardWeight(kRows, kIn, kOut, dy.data(), x.data(), twice.data());
  for (size_t i = 0; i < once.size(); ++i) EXPECT_FLOAT_EQ(twice[i], 2 * once[i]);
}

TEST(RmsNorm, ScalesEachRowToMeanSquareOne) {
  const std::vector<float> x = {3, 4, 0, 0, 1, 1, 1, 1};
  const std::vector<float> w = {1, 1, 1, 2};
  std::vector<float> y(8), scale(2);
  RmsNorm(2, 4, 0.0, x.data(), w.data(), y.data(), scale.data());
  EXPECT_FLOAT_EQ(y[0], 3 / 2.5f);
  EXPECT_FLOAT_EQ(y[1], 4 / 2.5f);
  EXPECT_FLOAT_EQ(y[7], 2);
}

TEST(RmsNorm, InputAndWeightGradientsMatchDifferencesEachCalledAlone) {
  std::vector<float> x = RandomValues(1, kRows * kIn);
  std::vector<float> w = RandomValues(2, kIn);
  const std::vector<float> dy = RandomValues(3, kRows * kIn);
  std::vector<float> y(dy.size()), scale(kRows), dx(x.size()), dw(w.size());
  const auto f = [&] {
    RmsNorm(kRows, kIn, 1e-5, x.data(), w.data(), y.data(), scale.data());
    return Dot(y, dy);
  };
  f();
  RmsNormBackwardInputAdd(kRows, kIn, dy.data(), x.data(), w.data(), scale.data(), dx.data());
  RmsNormBackwardWeight(kRows, kIn, dy.data(), x.data(), scale.data(), dw.data());
  ExpectGradient("dx", dx, x, f);
  ExpectGradient("dw", dw, w, f);
}

TEST(Rope, RotatesHalvesByPositionAsHuggingFaceDoes) {
  const Rope rope(3, RopeFrequencies(4, 100.0, {}));
  std::vector<float> x(3 * 4);
  std::iota(x.begin(), x.end(), 1.0f);
  const std::vector<float> before = x;
  rope.Rotate(3, 1, x.data());
  for (int position = 0; position < 3; ++position) {
    for (int i = 0; i < 2; ++i) {
      const double angle = position * std::pow(100.0, -2.0 * i / 4);
      const double first = before[position * 4 + i], second = before[position * 4 + i + 2];
      EXPECT_NEAR(x[position * 4 + i], first * std::cos(angle) - second * std::sin(angle), 1e-5);
      EXPECT_NEAR(x[position * 4 + i + 2], second * std::cos(angle) + first * std::sin(angle), 1e-5);
    }
  }
}

// Numbers of transformers 5.23, ROPE_INIT_FUNCTIONS["llama3"], in float32: short waves, waves between, long waves.
TEST(Rope, ScaledFrequenciesAreThoseOfTransformers) {
  const std::vector<double> small = RopeFrequencies(16, 1e4, core::RopeScaling{8, 1, 4, 64});
  const double expected[8] = {1.0,
                              0.24438458681106567,
                              0.013042256236076355,
                              0.0039528473280370235,
                              0.0012499999720603228,
                              0.00039528473280370235,
                              0.0001250000059371814,
                              3.9528473280370235e-05};
  ASSERT_EQ(small.size(), 8u);
  for (int i = 0; i < 8; ++i) EXPECT_NEAR(small[i] / expected[i], 1, 5e-6) << i;
  const std::vector<double> llama_3_2 = RopeFrequencies(64, 5e5, core::RopeScaling{32, 1, 4, 8192});
  ASSERT_EQ(llama_3_2.size(), 32u);
  EXPECT_NEAR(llama_3_2[14] / 0.0032114461064338684, 1, 5e-6);
  EXPECT_NEAR(llama_3_2[15] / 0.0012905480107292533, 1, 5e-6);
  EXPECT_NEAR(llama_3_2[16] / 0.000429556705057621, 1, 5e-6);
  EXPECT_NEAR(llama_3_2[17] / 9.708286233944818e-05, 1, 5e-6);
  EXPECT_NEAR(llama_3_2[18] / 1.9461638657958247e-05, 1, 5e-6);
  EXPECT_NEAR(llama_3_2[31] / 9.418306490260875e-08, 1, 5e-6);
}

TEST(Rope, InputGradientMatchesDifferences) {
  const Rope rope(5, RopeFrequencies(6, 10000.0, {}));
  std::vector<float> x = RandomValues(1, 10 * 2 * 6);  // two sequences, two heads
  std::vector<float> dx = RandomValues(2, x.size());
  const std::vector<float> dy = dx;
  const auto f = [&] {
    std::vector<float> y = x;
    rope.Rotate(10, 2, y.data());
    return Dot(y, dy);
  };
  rope.RotateBackwardInput(10, 2, dx.data());
  ExpectGradient("dx", dx, x, f);
}

TEST(SwiGlu, InputGradientsMatchDifferences) {
  std::vector<float> gate = RandomValues(1, 37, 3.0), up = RandomValues(2, 37);
  const std::vector<float> dy = RandomValues(3, 37);
  std::vector<float> y(37), dgate(37), dup(37);
  const auto f = [&] {
    SwiGlu(37, gate.data(), up.data(), y.data());
    return Dot(y, dy);
  };
  EXPECT_NEAR(
      f(),
      [&] {
        double sum = 0;
        for (int i = 0; i < 37; ++i) sum += gate[i] / (1 + std::exp(-static_cast<double>(gate[i]))) * up[i] * dy[i];
        return sum;
      }(),
      1e-5);
  SwiGluBackwardInput(37, dy.data(), gate.data(), up.data(), dgate.data(), dup.data());
  ExpectGradient("dgate", dgate, gate, f);
  ExpectGradient("dup", dup, up, f);
}

TEST(Embedding, WeightGradientAddsRowsOfRepeatedTokens) {
  const std::vector<int32_t> tokens = {2, 0, 2};
  std::vector<float> w = RandomValues(1, 4 * 3);
  const std::vector<float> dy = RandomValues(2, 3 * 3);
  std::vector<float> y(9), dw(12);
  const auto f = [&] {
    Embedding(tokens, 3, w.data(), y.data());
    return Dot(y, dy);
  };
  EmbeddingBackwardWeight(tokens, 3, dy.data(), dw.data());
  ExpectGradient("dw", dw, w, f);
  EXPECT_EQ(dw[3], 0.0f);  // token 1 does not occur
}

TEST(CrossEntropy, UniformLogitsCostTheLogarithmOfTheVocabulary) {
  const std::vector<int32_t> targets = {3, 0};
  std::vector<float> logits(2 * 10, 5.0f);
  EXPECT_NEAR(CrossEntropy(targets, 10, logits.data()), 2 * std::log(10.0), 1e-6);
  EXPECT_NEAR(logits[7], 0.1f, 1e-7);
}

TEST(CrossEntropy, InputGradientMatchesDifferences) {
  const std::vector<int32_t> targets = {3, 0, 3};
  std::vector<float> logits = RandomValues(1, 3 * 10, 4.0);
  std::vector<float> gradient = logits;
  const auto f = [&] {
    std::vector<float> copy = logits;
    return 0.5 * CrossEntropy(targets, 10, copy.data());
  };
  CrossEntropy(targets, 10, gradient.data());
  CrossEntropyBackwardInput(targets, 10, 0.5f, gradient.data());
  ExpectGradient("dlogits", gradient, logits, f);
}

}  // namespace
}  // namespace causeway::worker
