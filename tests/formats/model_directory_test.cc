#include "formats/model_directory.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "formats/hf_config.h"
#include "formats/run_yaml.h"
#include "formats/safetensors.h"
#include "tests/formats/temporary_folder.h"

namespace causeway::formats {
namespace {

using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;

const core::Manifest kManifest = {{.name = "a", .shape = {2}}, {.name = "b", .shape = {1, 3}}};
const float kA[2] = {1, 2};
const float kB[3] = {3, 4, 5};

// Reads the folder into zeros.
struct Model {
  explicit Model(const std::string& dir) {
    const std::span<float> tensors[2] = {a, b};
    status = ReadModelDirectory(dir, kManifest, tensors);
  }
  std::vector<float> a = {0, 0};
  std::vector<float> b = {0, 0, 0};
  absl::Status status;
};

void Write(const std::string& path, const std::vector<TensorData>& tensors) {
  ASSERT_TRUE(WriteSafetensors(path, tensors, {}).ok());
}

TEST(ModelDirectory, OneFileInAnyOrder) {
  const TemporaryFolder folder;
  Write(folder / "model.safetensors", {{"b", {1, 3}, kB}, {"layers.0.rotary_emb.inv_freq", {2}, kA}, {"a", {2}, kA}});
  const Model model(folder.path());
  ASSERT_TRUE(model.status.ok()) << model.status;
  EXPECT_THAT(model.a, ElementsAre(1, 2));
  EXPECT_THAT(model.b, ElementsAre(3, 4, 5));
}

TEST(ModelDirectory, ShardsOfAnIndex) {
  const TemporaryFolder folder;
  Write(folder / "model-1.safetensors", {{"a", {2}, kA}});
  Write(folder / "model-2.safetensors", {{"b", {1, 3}, kB}});
  folder.Write("model.safetensors.index.json",
               R"({"metadata":{},"weight_map":{"a":"model-1.safetensors","b":"model-2.safetensors"}})");
  const Model model(folder.path());
  ASSERT_TRUE(model.status.ok()) << model.status;
  EXPECT_THAT(model.a, ElementsAre(1, 2));
  EXPECT_THAT(model.b, ElementsAre(3, 4, 5));
}

TEST(ModelDirectory, FolderHasAModelIfItHasWeightsOrAnIndex) {
  const TemporaryFolder folder;
  EXPECT_FALSE(HasModel(folder / "none"));
  folder.Write("config.json", "{}");
  EXPECT_FALSE(HasModel(folder.path()));
  folder.Write("model.safetensors.index.json", "{}");
  EXPECT_TRUE(HasModel(folder.path()));
}

TEST(ModelDirectory, AnotherModelIsRefusedByTensor) {
  const auto error = [](const std::vector<TensorData>& tensors) {
    const TemporaryFolder folder;
    Write(folder / "model.safetensors", tensors);
    return std::string(Model(folder.path()).status.message());
  };
  EXPECT_THAT(error({{"a", {2}, kA}}), EndsWith(": tensor b is missing"));
  EXPECT_THAT(error({{"a", {2}, kA}, {"b", {3}, kB}}),
              EndsWith("model.safetensors: tensor b: expected shape [1,3], got [3]"));
  EXPECT_THAT(error({{"a", {2}, kA}, {"b", {1, 3}, kB}, {"lm_head.weight", {2}, kA}}),
              EndsWith("tensor lm_head.weight: expected a tensor of the run's model, once"));
}

// A tied model, whose files have its head or its embedding under both names or one.
TEST(ModelDirectory, HeadOfATiedModelIsTakenWhereItEqualsTheEmbedding) {
  const core::Manifest manifest = {{.name = "model.embed_tokens.weight", .shape = {3, 1}}};
  const float other[3] = {3, 4, 6};
  std::vector<float> values;
  const auto read = [&](const std::vector<TensorData>& first, const std::vector<TensorData>& second) {
    const TemporaryFolder folder;
    Write(folder / "1.safetensors", first);
    Write(folder / "2.safetensors", second);
    folder.Write("model.safetensors.index.json", R"({"weight_map":{"x":"1.safetensors","y":"2.safetensors"}})");
    values.assign(3, 0);
    const std::span<float> tensors[1] = {values};
    return ReadModelDirectory(folder.path(), manifest, tensors);
  };
  const TensorData embedding{"model.embed_tokens.weight", {3, 1}, kB};
  EXPECT_TRUE(read({embedding, {"lm_head.weight", {3, 1}, kB}}, {}).ok());
  EXPECT_TRUE(read({{"lm_head.weight", {3, 1}, kB}}, {embedding}).ok()) << "the head comes first";
  EXPECT_TRUE(read({{"lm_head.weight", {3, 1}, kB}}, {}).ok()) << "under the head's name alone";
  EXPECT_THAT(values, ElementsAre(3, 4, 5));
  EXPECT_THAT(
      std::string(read({embedding}, {{"lm_head.weight", {3, 1}, other}}).message()),
      EndsWith("2.safetensors: tensor lm_head.weight: expected the values of model.embed_tokens.weight, since the "
               "run ties them (tie_word_embeddings), got others: value 2 is 6 instead of 5; the model is untied: "
               "tie_word_embeddings: false in its config.json"));
  EXPECT_THAT(std::string(read({embedding}, {{"lm_head.weight", {1, 3}, kB}}).message()),
              EndsWith("tensor lm_head.weight: expected shape [3,1], got [1,3]"));
}

TEST(ModelDirectory, TensorsThatOtherRanksHoldArePassedOver) {
  const TemporaryFolder folder;
  Write(folder / "model.safetensors", {{"a", {2}, kA}, {"b", {1, 3}, kB}});
  std::vector<float> b(3);
  const std::span<float> tensors[1] = {b};
  const core::Manifest part = {kManifest[1]};
  EXPECT_TRUE(ReadModelDirectory(folder.path(), part, tensors, kManifest).ok());
  EXPECT_THAT(b, ElementsAre(3, 4, 5));
  EXPECT_FALSE(ReadModelDirectory(folder.path(), part, tensors).ok()) << "a tensor of no rank";
}

TEST(ModelDirectory, FileOfAnotherKindIsNamed) {
  const TemporaryFolder folder;
  const auto error = [&](std::string_view contents) {
    folder.Write("model.safetensors", contents);
    return std::string(Model(folder.path()).status.message());
  };
  EXPECT_THAT(error("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 99\n"),
              EndsWith("model.safetensors: expected a safetensors file, got a pointer of Git LFS, which stands for the "
                       "file: git lfs pull brings the file itself"));
  EXPECT_THAT(error("<!DOCTYPE html><html></html>"), HasSubstr("got a web page (HTML): it came instead of the file"));
  EXPECT_THAT(error(std::string("PK\3\4\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\5\0\0\0a.txt", 35)),
              HasSubstr("zip"));
}

TEST(ModelDirectory, FolderWithoutAModelIsRefused) {
  const TemporaryFolder folder;
  EXPECT_THAT(std::string(Model(folder.path()).status.message()),
              EndsWith("expected model.safetensors or model.safetensors.index.json"));
  const auto error = [&](const char* index) {
    folder.Write("model.safetensors.index.json", index);
    return std::string(Model(folder.path()).status.message());
  };
  EXPECT_THAT(error("{"), EndsWith("index.json: expected JSON, line 1, column 2: got the end of the text"));
  EXPECT_THAT(error(R"({"weight_map":[]})"), EndsWith("index.json: expected a JSON object with weight_map"));
  EXPECT_THAT(error(R"({"weight_map":{"a":"../x"}})"),
              EndsWith(R"(index.json: weight_map: a: expected a file name, got "../x")"));
  EXPECT_THAT(error(R"({"weight_map":{"a":"gone.safetensors"}})"), HasSubstr("gone.safetensors: No such file"));
}

std::string ErrorOf(const std::string& name, const std::string& contents = "{}") {
  const absl::StatusOr<ModelFile> file = CompressModelFile(name, contents);
  return file.ok() ? "taken" : std::string(file.status().message());
}

TEST(ModelFile, ContentsComeBackAsTheyWere) {
  for (const std::string& contents : {std::string("{}"), std::string(), std::string(3 << 20, 'x')}) {
    const absl::StatusOr<ModelFile> file = CompressModelFile("tokenizer.json", contents);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(file->bytes, std::ssize(contents));
    EXPECT_EQ(ExpandModelFile(*file).value(), contents);
  }
}

TEST(ModelFile, NamesLeadNowhereElseAndAreNoCodeAndNoWeights) {
  EXPECT_EQ(ErrorOf("config.json"), "taken");
  EXPECT_EQ(ErrorOf("sentencepiece.bpe.model"), "taken");
  for (const char* name : {"", "../config.json", "a/b.json", ".json", "model.safetensors", "modeling.py", "a b.json",
                           "pytorch_model.bin", "model.safetensors.index.json", "SHA256SUMS", "config.json\n"}) {
    EXPECT_THAT(ErrorOf(name), HasSubstr("expected")) << name;
  }
  EXPECT_THAT(ErrorOf(std::string(200, 'a') + ".json"), HasSubstr("up to 128 bytes"));
}

TEST(ModelFile, WhatFitsNoMessageIsRefused) {
  std::mt19937 random(1);
  std::string noise(9 << 20, '\0');
  for (char& byte : noise) byte = static_cast<char>(random());
  EXPECT_THAT(ErrorOf("tokenizer.model", noise), HasSubstr("compressed, got 94"));
  EXPECT_THAT(ErrorOf("tokenizer.model", std::string(kMaxModelFilesBytes + 1, ' ')), HasSubstr("got 67108865"));
}

TEST(ModelFile, OtherContentsThanAnnouncedAreRefused) {
  const ModelFile file = CompressModelFile("config.json", "{\"a\": 1}").value();
  ModelFile longer = file, other = file, cut = file, huge = file;
  ++longer.bytes;
  ++other.digest;
  cut.compressed.pop_back();
  huge.bytes = int64_t{1} << 40;
  for (const ModelFile& wrong : {longer, other, cut, huge}) {
    EXPECT_THAT(std::string(ExpandModelFile(wrong).status().message()), HasSubstr("file 'config.json' of the model"));
  }
}

const core::LlamaConfig kLlama{.hidden_size = 64,
                               .intermediate_size = 96,
                               .num_hidden_layers = 6,
                               .num_attention_heads = 4,
                               .num_key_value_heads = 2,
                               .vocab_size = 300,
                               .max_position_embeddings = 4096,
                               .rms_norm_eps = 1e-6,
                               .rope_theta = 5e5,
                               .rope_scaling = core::RopeScaling{32, 1, 4, 1024},
                               .tie_word_embeddings = false};

// A folder with kLlama's config.json and no weights, and run.yaml's that start from it.
class ModelCompletion : public testing::Test {
 protected:
  ModelCompletion() { folder_.Write("config.json", HfConfigJson(kLlama)); }

  absl::StatusOr<core::RunConfig> Parse(const std::string& keys) const {
    return ParseRunYaml(absl::StrCat("run_id: x\nmodel:\n  init_from: ", folder_.path(), "\n", keys), "run.yaml");
  }
  std::string ErrorOf(const std::string& keys) const {
    const absl::StatusOr<core::RunConfig> config = Parse(keys);
    return config.ok() ? "accepted" : std::string(config.status().message());
  }

  TemporaryFolder folder_;
};

TEST_F(ModelCompletion, ArchitectureIsThatOfTheFolder) {
  core::LlamaConfig expected = kLlama;
  expected.init_from = folder_.path();
  for (const char* keys : {"", "  kind: llama\n  hidden_size: 64\n  rms_norm_eps: 1e-6\n", "  rope_scaling:\n",
                           "  rope_scaling: {rope_type: llama3, factor: 32}\n"}) {
    const absl::StatusOr<core::RunConfig> config = Parse(keys);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->llama, expected);
    const absl::StatusOr<core::RunConfig> at_site = ParseRunConfig(SerializeRunConfig(*config));
    ASSERT_TRUE(at_site.ok()) << at_site.status();
    EXPECT_EQ(at_site->llama, expected);
  }
}

TEST_F(ModelCompletion, KeyThatDiffersFromTheFolderIsRefusedWithBoth) {
  EXPECT_EQ(ErrorOf("  hidden_size: 128\n"),
            absl::StrCat("run.yaml:4: model.hidden_size: expected 64 as in ", folder_.path(), "/config.json, got 128"));
  EXPECT_THAT(ErrorOf("  tie_word_embeddings: true\n"), HasSubstr("expected false as in"));
  EXPECT_THAT(ErrorOf("  rope_scaling: {rope_type: llama3, factor: 8}\n"),
              HasSubstr("model.rope_scaling: expected rope_type: \"llama3\" factor: 32 "));
  EXPECT_THAT(ErrorOf("  max_position_embeddings: 8192\n"), HasSubstr("expected 4096 as in"));
}

TEST_F(ModelCompletion, SmallerMaxPositionEmbeddingsIsTheSameModel) {
  const absl::StatusOr<core::RunConfig> config = Parse("  max_position_embeddings: 512\n");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->llama.max_position_embeddings, 512);
  EXPECT_EQ(config->llama.hidden_size, 64);
}

TEST_F(ModelCompletion, WithoutConfigJsonTheKeysMustBeInRunYaml) {
  std::filesystem::remove(folder_ / "config.json");
  EXPECT_THAT(ErrorOf(""), testing::AllOf(HasSubstr("run.yaml:3: model.init_from: expected the model's config.json"),
                                          HasSubstr("hidden_size and the other keys"), HasSubstr("/config.json")));
  const absl::StatusOr<core::RunConfig> config = Parse("  hidden_size: 32\n");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->llama.hidden_size, 32);
}

TEST_F(ModelCompletion, ModelThatCannotBeTrainedHereIsRefusedByName) {
  folder_.Write("config.json", R"({"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]})");
  EXPECT_THAT(ErrorOf(""),
              EndsWith(R"(config.json: architectures: expected LlamaForCausalLM, got ["Qwen2ForCausalLM"];)"
                       " for that use the Python package (model: {kind: external})"));
}

TEST(RopeScalingKey, IsReadCheckedAndCarried) {
  const auto parse = [](const std::string& scaling) {
    return ParseRunYaml("run_id: x\nmodel:\n  rope_scaling: " + scaling + "\n", "run.yaml");
  };
  const auto config = parse(
      "{rope_type: llama3, factor: 8, low_freq_factor: 1, high_freq_factor: 4, original_max_position_embeddings: 64}");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->llama.rope_scaling, (core::RopeScaling{8, 1, 4, 64}));
  EXPECT_THAT(RunConfigJson(*config), HasSubstr(R"("rope_scaling":{"rope_type":"llama3","factor":8.0,)"));
  EXPECT_EQ(FixedConfigDifference(*parse(""), *config).substr(0, 35), "model.rope_scaling: expected null, ");
  const auto error = [&](const std::string& scaling) { return std::string(parse(scaling).status().message()); };
  EXPECT_EQ(error("{rope_type: yarn, factor: 8}"),
            "run.yaml:3: model.rope_scaling.rope_type: expected llama3; for others use the Python package (model: "
            "{kind: external}), got yarn");
  EXPECT_THAT(error("{rope_type: llama3}"), HasSubstr("model.rope_scaling.factor: expected a number above 0, got 0"));
  EXPECT_THAT(error("{rope_type: llama3, factor: 8, low_freq_factor: 4, high_freq_factor: 4, "
                    "original_max_position_embeddings: 64}"),
              HasSubstr("high_freq_factor: expected more than low_freq_factor 4, got 4"));
  EXPECT_FALSE(parse("")->llama.rope_scaling.has_value());
}

}  // namespace
}  // namespace causeway::formats
