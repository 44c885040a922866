#include "worker/library/external_model.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "core/model_manifest.h"

namespace causeway::worker {
namespace {

using core::TensorKind;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

core::RunConfig External() {
  core::RunConfig config;
  config.model_kind = core::ModelKind::kExternal;
  return config;
}

std::string Message(const std::string& model, const core::RunConfig& config = External()) {
  return std::string(ParseExternalModel(model, config).status().message());
}

std::string OneTensor(const std::string& more) {
  return R"({"tensors": [{"name": "w", "shape": [2, 3])" + more + "}]}";
}

TEST(ExternalModel, KindAndLayerFollowFromTheNameUnlessTheyAreGiven) {
  const auto model = ParseExternalModel(R"({"tensors": [
      {"name": "transformer.wte.weight", "shape": [10, 4]},
      {"name": "transformer.h.11.attn.c_attn.weight", "shape": [4, 12]},
      {"name": "transformer.h.11.ln_1.bias", "shape": [4]},
      {"name": "model.layers.2.mlp.experts.up", "shape": [8, 4, 4]},
      {"name": "lm_head.weight", "shape": [10, 4]},
      {"name": "adapter", "shape": [4, 4], "kind": "expert", "layer": 3},
      {"name": "norm.running_mean", "shape": [4], "kind": "buffer"}]})",
                                        External());
  ASSERT_TRUE(model.ok()) << model.status();
  std::vector<TensorKind> kinds;
  std::vector<int> layers;
  for (const core::TensorSpec& tensor : model->manifest) {
    kinds.push_back(tensor.kind);
    layers.push_back(tensor.layer);
  }
  EXPECT_THAT(kinds, ElementsAre(TensorKind::kEmbedding, TensorKind::kMatrix, TensorKind::kNorm, TensorKind::kExpert,
                                 TensorKind::kHead, TensorKind::kExpert, TensorKind::kBuffer));
  EXPECT_THAT(layers, ElementsAre(core::kNoLayer, 11, 11, 2, core::kNoLayer, 3, core::kNoLayer));
}

// A PyTorch model with Hugging Face's names is taken for what the native trainer declares.
TEST(ExternalModel, NamesOfALlamaGiveTheKindsAndLayersOfTheNativeOne) {
  const core::Manifest llama = core::LlamaManifest({.tie_word_embeddings = false});
  for (const core::TensorSpec& tensor : llama) {
    EXPECT_EQ(KindOf(tensor.name, tensor.shape), tensor.kind) << tensor.name;
    EXPECT_EQ(LayerOf(tensor.name), tensor.layer) << tensor.name;
  }
}

TEST(ExternalModel, TensorsOfARunThatKnowsItsModelMayComeInAnyOrder) {
  core::RunConfig config;
  config.model_kind = core::ModelKind::kSynthetic;
  config.synthetic.tensors = {{.name = "a", .shape = {2}}, {.name = "b", .shape = {3}}};
  const auto model = ParseExternalModel(
      R"({"tensors": [{"name": "b", "shape": [3], "dtype": "bfloat16"}, {"name": "a", "shape": [2]}]})", config);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->manifest[0].name, "a");
  EXPECT_THAT(model->given_as, ElementsAre(1, 0));
  EXPECT_EQ(model->tensors[1].dtype, core::DType::kBfloat16);
  EXPECT_EQ(model->tensors[1].values, 3);
  EXPECT_THAT(Message(R"({"tensors": [{"name": "a", "shape": [2]}]})", config),
              HasSubstr("expected tensor b [3] matrix of layer 1 of the run's model, got none of that name"));
  EXPECT_THAT(Message(R"({"tensors": [{"name": "a", "shape": [2]}, {"name": "b", "shape": [4]}]})", config),
              HasSubstr("expected tensor b [3] matrix of layer 1, got b [4]"));
  EXPECT_THAT(Message(R"({"tensors": [{"name": "a", "shape": [2]}, {"name": "b", "shape": [3]},
                                      {"name": "c", "shape": [1]}]})",
                      config),
              HasSubstr("got also c [1]"));
}

TEST(ExternalModel, WhatCannotBeMeantIsNamed) {
  EXPECT_EQ(Message("[1]"), "model: expected an object in JSON, got [1]");
  EXPECT_EQ(Message("{}"), "model: tensors: expected a list of at least one object, got null");
  EXPECT_EQ(Message(OneTensor(R"(, "dtype": "float8")")),
            "tensor w: dtype: expected float32, bfloat16 or float16 of a tensor that is trained, got float8");
  EXPECT_EQ(Message(OneTensor(R"(, "kind": "vector")")),
            "tensor w: kind: expected matrix, embedding, norm, head, expert or buffer, got vector");
  EXPECT_EQ(Message(OneTensor(R"(, "layer": "one")")), "tensor w: layer: expected an integer, got \"one\"");
  EXPECT_EQ(Message(OneTensor(R"(, "values_digest": "xyz")")),
            "tensor w: values_digest: expected up to 16 hexadecimal digits, got xyz");
  EXPECT_EQ(Message(OneTensor(R"(, "shapes": 1)")), "tensor w: expected keys that causeway.h lists, got \"shapes\"");
}

TEST(ExternalModel, WhatTheSiteTrainsOnMayBeSaid) {
  constexpr char kTensors[] = R"({"tensors": [{"name": "w", "shape": [2]}])";
  const auto parse = [&](const std::string& data) { return ParseExternalModel(kTensors + data + "}", External()); };
  EXPECT_EQ(parse("")->data.training, std::nullopt);
  const auto model = parse(R"(, "data": {"tokens": 12, "digest": "00ff"})");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->data.training, (core::DataFingerprint{12, 255}));
  EXPECT_EQ(parse(R"(, "data": {"tokens": 0})").status().message(), "data: tokens: expected 1 or more, got 0");
  EXPECT_EQ(parse(R"(, "data": {"tokens": 1, "digest": "x"})").status().message(),
            "data: digest: expected up to 16 hexadecimal digits, got x");
}

TEST(ExternalModel, FrozenTensorMayHaveAnyType) {
  const auto model = ParseExternalModel(R"({"tensors": [
      {"name": "base", "shape": [2, 2], "dtype": "float8_e4m3fn", "frozen": true, "values_digest": "ff"},
      {"name": "lora", "shape": [2, 2]}]})",
                                        External());
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_FALSE(model->manifest[0].synced());
  EXPECT_EQ(model->manifest[0].values_digest, 255);
  EXPECT_TRUE(model->manifest[1].synced());
}

}  // namespace
}  // namespace causeway::worker
