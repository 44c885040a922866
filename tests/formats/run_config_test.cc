// The run's config as bytes, as JSON, and against the state of an earlier start.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <limits>

#include "causeway/v1/run_config.pb.h"
#include "formats/run_yaml.h"

namespace causeway::formats {
namespace {

using testing::HasSubstr;

// Every field differs from its default.
core::RunConfig Llama() {
  core::RunConfig config{.run_id = "r", .seed = 1ull << 63, .steps = 100};
  config.llama = {.hidden_size = 64,
                  .intermediate_size = 100,
                  .num_hidden_layers = 2,
                  .num_attention_heads = 8,
                  .num_key_value_heads = 2,
                  .vocab_size = 1000,
                  .max_position_embeddings = 32,
                  .rms_norm_eps = 1e-6,
                  .rope_theta = 5e5,
                  .tie_word_embeddings = false,
                  .init_from = "some/folder"};
  config.inner = {.optimizer = core::InnerOptimizerKind::kSgd,
                  .lr = 0.1,
                  .warmup_steps = 0,
                  .schedule = core::InnerSchedule::kConstant,
                  .beta1 = 0.8,
                  .beta2 = 0.95,
                  .weight_decay = 0,
                  .clip = 0,
                  .batch_size = 3,
                  .batch_by_site = {{"a", 6}, {"b", 9}},
                  .sequence_length = 31};
  config.data = {.mode = core::DataMode::kOwn, .token_bytes = 4, .allow_equal = true};
  config.sync = {.sync_every = 6,
                 .num_fragments = 3,
                 .fragment_assignment = core::FragmentAssignment::kBalanced,
                 .fragment_sync_delay = 0,
                 .fragment_update_alpha = 0.1f,
                 .fragment_offsets = {5, 0, 2},
                 .first_send = core::FirstSend::kOffset};
  config.outer = {.lr = 0.4f, .momentum = 0};
  config.codec = {.up = core::CodecId::kSign,
                  .down = core::CodecId::kRotatedLm4,
                  .feedback_up = 0,
                  .feedback_down = 0.3f,
                  .exempt = {core::TensorKind::kNorm, core::TensorKind::kEmbedding},
                  .zstd = true};
  config.membership = {.min_sites = 3, .lease_ms = 500, .weights = core::WeightRule::kTokens};
  config.eval = {.every_rounds = 0, .held_out = 0.1, .batches = 1};
  config.checkpoint = {.every_rounds = 0, .keep = 1};
  config.offload = {.k = 3, .resident_share = 0.25, .subgroup = 5000};
  return config;
}

core::RunConfig Synthetic() {
  core::RunConfig config{.run_id = "load", .model_kind = core::ModelKind::kSynthetic};
  config.synthetic = {.step_ms = 10,
                      .seeded_init = true,
                      .tensors = {{"w", {1000}, 0.1f}, {"b", {2, 3}, -1e-30f}},
                      .gradient = core::SyntheticGradient::kNoise,
                      .gradient_by_site = {{"a", 0.5f}, {"b", -0.3f}},
                      .apply = core::SyntheticApply::kOnSend};
  config.sync.num_fragments = 2;
  config.offload.k = core::kAllOnCpu;
  config.codec.allow_up = {core::CodecId::kBfloat16, core::CodecId::kInt8, core::CodecId::kInt4};
  return config;
}

core::RunConfig External() {
  core::RunConfig config{.run_id = "any", .model_kind = core::ModelKind::kExternal};
  config.sync.num_fragments = 2;
  config.sync.fragments = {{"model.layers.0.", "lm_head"}, {""}};
  return config;
}

TEST(RunConfigBytes, ComeBackTheSame) {
  for (const core::RunConfig& config : {Llama(), Synthetic(), External(), core::RunConfig{.run_id = "d"}}) {
    const absl::StatusOr<core::RunConfig> parsed = ParseRunConfig(SerializeRunConfig(config));
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, config);
  }
}

TEST(RunConfigBytes, HoldEveryKeySoThatDefaultsHaveNoSay) {
  v1::RunConfig message;
  ASSERT_TRUE(message.ParseFromString(SerializeRunConfig({.run_id = "d"})));
  EXPECT_TRUE(message.inner().has_lr());
  EXPECT_TRUE(message.run().has_steps());
  EXPECT_TRUE(message.model().has_tie_word_embeddings());
  EXPECT_TRUE(message.membership().has_merge());
}

TEST(RunConfigBytes, OfProgramsThatHadNoModeOfDataAreShared) {
  v1::RunConfig message;
  ASSERT_TRUE(message.ParseFromString(SerializeRunConfig(Llama())));
  message.clear_data();
  const absl::StatusOr<core::RunConfig> parsed = ParseRunConfig(message.SerializeAsString());
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->data, (core::DataConfig{.mode = core::DataMode::kShared, .token_bytes = 2, .allow_equal = false}));
}

TEST(RunConfigBytes, AreCheckedLikeTheFile) {
  EXPECT_EQ(ParseRunConfig("\xff\xff").status().message(), "run config: cannot be parsed as RunConfig (2 bytes)");
  core::RunConfig config = Llama();
  config.sync.fragment_sync_delay = 6;
  EXPECT_EQ(ParseRunConfig(SerializeRunConfig(config)).status().message(),
            "run config: sync.fragment_sync_delay: expected 0 to 5 (less than sync_every), got 6");
}

TEST(RunConfigJson, IsARunYaml) {
  for (const core::RunConfig& config : {Llama(), Synthetic(), External(), core::RunConfig{.run_id = "d"}}) {
    const absl::StatusOr<core::RunConfig> parsed = ParseRunYaml(RunConfigJson(config), "json");
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, config);
  }
}

TEST(RunConfigJson, HasEveryKeyInTheFilesOrder) {
  EXPECT_EQ(
      RunConfigJson({.run_id = "demo"}),
      R"({"run_id":"demo","seed":1,"run":{"steps":0,"tokens":0},)"
      R"("model":{"kind":"llama","hidden_size":128,"intermediate_size":344,"num_hidden_layers":4,)"
      R"("num_attention_heads":4,"num_key_value_heads":4,"vocab_size":256,"max_position_embeddings":128,)"
      R"("rms_norm_eps":1e-05,"rope_theta":10000.0,"tie_word_embeddings":true,"init_from":""},)"
      R"("inner":{"optimizer":"adamw","lr":0.003,"warmup_steps":50,"schedule":"cosine","beta1":0.9,)"
      R"("beta2":0.99,"weight_decay":0.1,"clip":1.0,"batch_size":8,"sequence_length":0,"batch_per_rank":0,)"
      R"("freeze_at":"auto","micro_batches":1,"batch_by_site":{}},)"
      R"("sync":{"mode":"synchronous","sync_every":20,"num_fragments":4,"fragment_assignment":"strided",)"
      R"("fragment_sync_delay":1,"fragment_update_alpha":0.5,"first_send":"full","parts":1,"device_memory":"auto",)"
      R"("fragment_offsets":[],"fragments":[]},)"
      R"("outer":{"optimizer":"nesterov","lr":0.7,"momentum":0.9,"codec_gain":false},)"
      R"("codec":{"up":"int4","down":"int4","feedback_up":1.0,"feedback_down":1.0,"zstd":false,"exempt":[]},)"
      R"("membership":{"min_sites":1,"min_quorum":1,"grace_ms":0,"lease_ms":10000,"max_staleness":1,)"
      R"("weights":"uniform","merge":"average","max_tokens_per_step":0},)"
      R"("eval":{"every_rounds":1,"held_out":0.05,"batches":8},"checkpoint":{"every_rounds":10,"keep":3,"max_update_log_bytes":4294967296,)"
      R"("min_free_bytes":1073741824},"offload":{"k":"auto","subgroup":100000000,"resident_share":"auto"},)"
      R"("data":{"mode":"shared","token_bytes":2,"allow_equal":false},)"
      R"("values":{"gate":8.0,"clip":false,"weight_cap":0.0},)"
      R"("durability":{"journal":"strict"},"placement":"hub"})");
}

TEST(RunConfigJson, ExemptKindsAreNames) {
  EXPECT_THAT(RunConfigJson(Llama()), HasSubstr(R"("zstd":true,"exempt":["norm","embedding"]})"));
}

TEST(RunConfigJson, OfAnExternalModelHasNoKeysThatTheSitesHave) {
  EXPECT_THAT(RunConfigJson(External()), HasSubstr(R"("model":{"kind":"external"},"sync":)"));
  EXPECT_THAT(RunConfigJson(External()), HasSubstr(R"("fragments":[["model.layers.0.","lm_head"],[""]])"));
}

TEST(RunConfigJson, NotANumberIsNull) {
  core::RunConfig config = Synthetic();
  config.synthetic.gradient_by_site["a"] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(RunConfigJson(config), HasSubstr(R"("by_site":{"a":null,"b":-0.3})"));
}

TEST(FixedConfig, DifferenceIsNamedWithBothValues) {
  const core::RunConfig saved = Llama();
  const auto difference = [&](auto change) {
    core::RunConfig now = saved;
    change(now);
    return FixedConfigDifference(saved, now);
  };
  EXPECT_EQ(difference([](core::RunConfig&) {}), "");
  EXPECT_EQ(difference([](core::RunConfig& now) { now.run_id = "s"; }), R"(run_id: expected "r", got "s")");
  EXPECT_EQ(difference([](core::RunConfig& now) { now.seed = 2; }), "seed: expected 9223372036854775808, got 2");
  EXPECT_EQ(difference([](core::RunConfig& now) { now.llama.hidden_size = 128; }),
            "model.hidden_size: expected 64, got 128");
  EXPECT_EQ(difference([](core::RunConfig& now) { now.sync.num_fragments = 2; }),
            "sync.num_fragments: expected 3, got 2");
  EXPECT_EQ(difference([](core::RunConfig& now) { now.sync.fragment_assignment = core::FragmentAssignment::kStrided; }),
            R"(sync.fragment_assignment: expected "balanced", got "strided")");
  EXPECT_EQ(difference([](core::RunConfig& now) { now.eval.held_out = 0.2; }), "eval.held_out: expected 0.1, got 0.2");
  EXPECT_EQ(FixedConfigDifference({.run_id = "load"}, Synthetic()), R"(model.kind: expected "llama", got "synthetic")");
}

TEST(FixedConfig, ModeOfDataThatTheFileLeavesOpenIsTheStoredOne) {
  for (const core::DataMode mode : {core::DataMode::kOwn, core::DataMode::kShared}) {
    core::RunConfig stored{.run_id = "d"};
    stored.data.mode = mode;
    const absl::StatusOr<core::RunConfig> open = ParseRunYaml("run_id: d\ndata: {allow_equal: false}\n", "f", &stored);
    ASSERT_TRUE(open.ok()) << open.status();
    EXPECT_EQ(FixedConfigDifference(stored, *open), "");
  }
  core::RunConfig stored{.run_id = "d"};
  const absl::StatusOr<core::RunConfig> other = ParseRunYaml("run_id: d\ndata: {mode: own}\n", "f", &stored);
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(FixedConfigDifference(stored, *other), R"(data.mode: expected "shared", got "own")");
}

TEST(FixedConfig, WhatMayChangeBetweenStartsIsNoDifference) {
  core::RunConfig now = Llama();
  now.outer.lr = 0.1f;
  now.checkpoint.keep = 9;
  now.membership.min_sites = 1;
  now.steps = 201;
  now.inner.lr = 0.5;
  EXPECT_EQ(FixedConfigDifference(Llama(), now), "");
}

TEST(InnerConfig, VarianceIsNotFrozenInTheWarmupAndAutoIsSaidByTheWord) {
  const auto error = [](const char* section) {
    return std::string(ParseRunYaml(std::string("run_id: d\n") + section, "run.yaml").status().message());
  };
  EXPECT_EQ(error("inner: {optimizer: onebit_adam, freeze_at: 2, warmup_steps: 2}\n"), "");
  EXPECT_EQ(error("inner: {optimizer: onebit_adam, freeze_at: auto, warmup_steps: 2}\n"), "");
  EXPECT_EQ(error("inner: {optimizer: onebit_adam, freeze_at: 1, warmup_steps: 2}\n"),
            "run.yaml:2: inner.freeze_at: expected warmup_steps, 2, or more, or auto, got 1");
  EXPECT_EQ(error("inner: {optimizer: onebit_adam, freeze_at: 49}\n"),
            "run.yaml:2: inner.freeze_at: expected warmup_steps, 50, or more, or auto, got 49");
  EXPECT_EQ(error("inner: {optimizer: onebit_adam, freeze_at: -1}\n"),
            "run.yaml:2: inner.freeze_at: expected auto, or an integer of 0 or more, got -1");
  EXPECT_EQ(error("sync: {fragment_sync_delay: -1}\n"),
            "run.yaml:2: sync.fragment_sync_delay: expected auto, or an integer of 0 or more, got -1");
}

}  // namespace
}  // namespace causeway::formats
