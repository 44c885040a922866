
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "formats/hf_config.h"
#include "formats/run_yaml.h"
#include "tests/formats/temporary_folder.h"

namespace causeway::formats {
namespace {

using testing::EndsWith;
using testing::HasSubstr;

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
