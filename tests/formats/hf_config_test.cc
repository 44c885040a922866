#include "formats/hf_config.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/formats/temporary_folder.h"

namespace causeway::formats {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;

constexpr char kRequired[] =
    R"("model_type": "llama", "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1,
       "num_attention_heads": 2)";

std::string ErrorOfJson(const std::string& json) {
  const TemporaryFolder folder;
  const absl::StatusOr<core::LlamaConfig> llama = ReadHfConfig(folder.Write("config.json", json));
  return llama.ok() ? "accepted" : std::string(llama.status().message());
}

std::string ErrorWith(const std::string& keys) { return ErrorOfJson(std::string("{") + kRequired + ", " + keys + "}"); }

TEST(HfConfig, ComesBackTheSame) {
  const core::LlamaConfig llama{.hidden_size = 64,
                                .intermediate_size = 100,
                                .num_hidden_layers = 2,
                                .num_attention_heads = 8,
                                .num_key_value_heads = 2,
                                .vocab_size = 1000,
                                .max_position_embeddings = 32,
                                .rms_norm_eps = 1e-6,
                                .rope_theta = 5e5,
                                .tie_word_embeddings = false};
  const TemporaryFolder folder;
  const absl::StatusOr<core::LlamaConfig> read = ReadHfConfig(folder.Write("config.json", HfConfigJson(llama)));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, llama);
}

TEST(HfConfig, SaysWhatTransformersAsksFor) {
  const nlohmann::json json = nlohmann::json::parse(HfConfigJson({}));
  EXPECT_EQ(json["architectures"], nlohmann::json::array({"LlamaForCausalLM"}));
  EXPECT_EQ(json["model_type"], "llama");
  EXPECT_EQ(json["hidden_act"], "silu");
  EXPECT_EQ(json["torch_dtype"], "float32");
  EXPECT_EQ(json["attention_bias"], false);
  EXPECT_EQ(json["tie_word_embeddings"], true);
  EXPECT_EQ(json["rms_norm_eps"], 1e-5);
  EXPECT_EQ(json["head_dim"], 32);
}

TEST(HfConfig, DifferenceIsNamedByKey) {
  EXPECT_EQ(HfConfigDifference({}, {}), "");
  EXPECT_EQ(HfConfigDifference({}, {.init_from = "elsewhere"}), "");
  EXPECT_EQ(HfConfigDifference({}, {.vocab_size = 300}), "vocab_size: expected 256, got 300");
  EXPECT_EQ(HfConfigDifference({.rope_theta = 5e5}, {}), "rope_theta: expected 500000.0, got 10000.0");
}

TEST(HfConfig, AbsentKeysTakeTransformersDefaults) {
  const TemporaryFolder folder;
  const absl::StatusOr<core::LlamaConfig> read =
      ReadHfConfig(folder.Write("config.json", std::string("{") + kRequired + R"(, "rope_scaling": null})"));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->num_key_value_heads, 2);
  EXPECT_EQ(read->vocab_size, 32000);
  EXPECT_EQ(read->rms_norm_eps, 1e-6);
  EXPECT_FALSE(read->tie_word_embeddings);
}

TEST(HfConfig, RopeThetaStandsInEitherPlace) {
  const TemporaryFolder folder;
  const auto theta = [&](const std::string& keys) {
    const auto read = ReadHfConfig(folder.Write("config.json", std::string("{") + kRequired + ", " + keys + "}"));
    return read.ok() ? read->rope_theta : -1;
  };
  EXPECT_EQ(theta(R"("rope_theta": 5e5)"), 5e5);
  EXPECT_EQ(theta(R"("rope_parameters": {"rope_type": "default", "rope_theta": 1e6})"), 1e6);
}

TEST(HfConfig, Llama3RopeScalingStandsInEitherPlace) {
  const core::RopeScaling expected{32, 1, 4, 8192};
  const std::string values =
      R"("factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192})";
  const TemporaryFolder folder;
  for (const char* begin :
       {R"("rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", )",
        R"("rope_theta": 5e5, "rope_scaling": {"type": "llama3", )",
        R"("rope_scaling": null, "rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, )"}) {
    const auto read =
        ReadHfConfig(folder.Write("config.json", std::string("{") + kRequired + ", " + begin + values + "}"));
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->rope_theta, 5e5);
    EXPECT_EQ(read->rope_scaling, expected);
    const auto again = ReadHfConfig(folder.Write("config.json", HfConfigJson(*read)));
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(*again, *read);
  }
}

TEST(HfConfig, WhatCannotBeTrainedIsRefusedByKey) {
  EXPECT_THAT(ErrorOfJson("{"), EndsWith("config.json: expected JSON, line 1, column 2: got the end of the text"));
  EXPECT_THAT(ErrorOfJson("{}"), EndsWith("config.json: model_type: expected llama, got none"));
  const std::string instead = "; for that use the Python package (model: {kind: external})";
  EXPECT_THAT(ErrorOfJson(R"({"model_type": "gpt2"})"),
              EndsWith(R"(model_type: expected "llama", got "gpt2")" + instead));
  EXPECT_THAT(ErrorOfJson(R"({"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]})"),
              EndsWith(R"(architectures: expected LlamaForCausalLM, got ["Qwen2ForCausalLM"])" + instead));
  EXPECT_THAT(ErrorOfJson(R"({"model_type": "llama"})"),
              AllOf(HasSubstr("hidden_size: expected an integer, got none\n"),
                    EndsWith("num_attention_heads: expected an integer, got none")));
  EXPECT_THAT(ErrorWith(R"("hidden_act": "gelu")"), EndsWith(R"(hidden_act: expected "silu", got "gelu")" + instead));
  EXPECT_THAT(ErrorWith(R"("attention_bias": true)"), EndsWith("attention_bias: expected false, got true" + instead));
  EXPECT_THAT(ErrorWith(R"("rope_scaling": {"factor": 8.0})"),
              EndsWith(R"(rope_scaling: expected none, or of rope_type llama3, got {"factor":8.0})" + instead));
  EXPECT_THAT(ErrorWith(R"("rope_scaling": 8)"),
              HasSubstr("rope_scaling: expected none, or of rope_type llama3, got 8"));
  EXPECT_THAT(
      ErrorWith(R"("rope_parameters": {"rope_type": "yarn"})"),
      EndsWith(R"(rope_parameters: expected none, or of rope_type llama3, got {"rope_type":"yarn"})" + instead));
  EXPECT_THAT(ErrorWith(R"("rope_scaling": {"rope_type": "llama3", "factor": 8.0})"),
              AllOf(HasSubstr("low_freq_factor: expected a number, got none\n"),
                    EndsWith("original_max_position_embeddings: expected a number, got none")));
  EXPECT_THAT(ErrorWith(R"("head_dim": 6)"), EndsWith("head_dim: expected 4, got 6" + instead));
  EXPECT_THAT(ErrorWith(R"("vocab_size": "many")"), EndsWith(R"(vocab_size: expected an integer, got "many")"));
  EXPECT_THAT(ErrorWith(R"("vocab_size": 1.5)"), EndsWith("vocab_size: expected an integer, got 1.5"));
  EXPECT_THAT(ErrorWith(R"("rope_theta": [])"), EndsWith("rope_theta: expected a number, got []"));
  EXPECT_THAT(ErrorWith(R"("tie_word_embeddings": 1)"), EndsWith("tie_word_embeddings: expected true or false, got 1"));
  EXPECT_THAT(ErrorWith(R"("num_key_value_heads": 3)"), HasSubstr("num_key_value_heads: expected 1 to 2"));
}

}  // namespace
}  // namespace causeway::formats
