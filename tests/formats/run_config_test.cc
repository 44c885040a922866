// The run's config as bytes, as JSON, and against the state of an earlier start.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <limits>

#include "causeway/v1/run_config.pb.h"
#include "formats/presets.h"
#include "formats/run_yaml.h"
#include "formats/settings.h"

namespace causeway::formats {
namespace {

using testing::ElementsAre;
using ::testing::HasSubstr;
using testing::HasSubstr;
using testing::Not;

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
      R"("freeze_at":"auto","warmup_codec":"float32","micro_batches":1,"batch_by_site":{}},)"
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
  EXPECT_EQ(error("inner: {optimizer: onebit_adam, warmup_codec: bfloat16}\n"), "");
  EXPECT_EQ(error("inner: {warmup_codec: bfloat16}\n"),
            "run.yaml:2: inner.warmup_codec: expected none without inner.optimizer: onebit_adam, got bfloat16");
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

// The section `codec` of run.yaml.

TEST(CodecFields, AutoBeginsWithTheCheapestThatIsAllowed) {
  const absl::StatusOr<core::RunConfig> config =
      ParseRunYaml("run_id: a\ncodec: {up: auto, down: auto, allow_down: [float32, bfloat16, int8]}\n", "f");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->codec.allow_up,
            (std::vector{core::CodecId::kRotatedLm4, core::CodecId::kRotatedLm2, core::CodecId::kRotatedSign}));
  EXPECT_EQ(config->codec.up, core::CodecId::kRotatedSign);
  EXPECT_EQ(config->codec.down, core::CodecId::kInt8);
  EXPECT_THAT(RunConfigJson(*config), HasSubstr(R"("allow_down":["float32","bfloat16","int8"])"));
}

TEST(CodecFields, SparseDownBeginsWithRoomForTheSitesThatTheRunWaitsFor) {
  const absl::StatusOr<core::RunConfig> config =
      ParseRunYaml("run_id: a\ncodec: {up: topk32, down: sparse}\nmembership: {min_sites: 3}\n", "f");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(config->codec.sparse_down());
  EXPECT_FALSE(config->codec.chooses_down());
  EXPECT_EQ(config->codec.down, core::CodecId::kTopk128);
  EXPECT_THAT(RunConfigJson(*config), HasSubstr(R"("down":"sparse")"));
  EXPECT_THAT(RunConfigJson(*config), testing::Not(HasSubstr("allow_down")));
  EXPECT_EQ(*ParseRunConfig(SerializeRunConfig(*config)), *config);
}

TEST(CodecFields, EveryCodecMayBeNamed) {
  for (core::CodecId codec : core::kAllCodecs) {
    const std::string text = std::string("run_id: a\ncodec: {up: ") + core::CodecName(codec) + "}\n";
    const absl::StatusOr<core::RunConfig> config = ParseRunYaml(text, "f");
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->codec.up, codec);
  }
}

TEST(CodecFields, SparseIsForTheDownLegOfSparseContributions) {
  const auto refusal = [](const std::string& codec) {
    return std::string(ParseRunYaml("run_id: a\n" + codec, "f").status().message());
  };
  EXPECT_EQ(refusal("codec:\n  up: int4\n  down: sparse\n"),
            "f:4: codec.down: expected codec.up: topk with it, or one of its family, got it with codec.up: int4");
  EXPECT_THAT(refusal("codec: {up: sparse}\n"), HasSubstr("f:2: codec.up: expected one of float32, "));
  EXPECT_EQ(refusal("codec: {up: topk, down: sparse, allow_down: [topk]}\n"),
            "f:2: codec.allow_down: expected it only with down: auto, got it with down: sparse");
}

core::RunConfig Read(const std::string& rest, const core::RunConfig* stored = nullptr) {
  const auto config = ParseRunYaml("run_id: d\n" + rest, "run.yaml", stored);
  EXPECT_TRUE(config.ok()) << config.status();
  return config.value_or(core::RunConfig());
}

TEST(Presets, StandForKeysWhichTheFileOverrules) {
  const core::RunConfig slow = Read("preset: slow-link\n");
  EXPECT_EQ(slow.codec.up, core::CodecId::kRotatedSign);
  EXPECT_EQ(slow.codec.feedback_down, 0);
  EXPECT_TRUE(slow.codec_gain);
  EXPECT_EQ(slow.sync.sync_every, 30);
  const core::RunConfig own = Read("sync: {sync_every: 60}\ncodec: {up: int8}\npreset: slow-link\n");
  EXPECT_EQ(own.codec.up, core::CodecId::kInt8);
  EXPECT_EQ(own.codec.down, core::CodecId::kRotatedSign);
  EXPECT_EQ(own.sync.sync_every, 60);
  EXPECT_EQ(Read("preset: float32\nouter: {optimizer: sgd}\n").outer.momentum, 0);
  const core::RunConfig sparse = Read("preset: sparse\n");
  EXPECT_TRUE(sparse.codec.sparse_down());
  EXPECT_EQ(sparse.outer.momentum, 0);
  EXPECT_EQ(Read("preset: sparse\nouter: {momentum: 0.6}\n").outer.momentum, 0.6f);
}

TEST(Presets, ARunKeepsTheKeysAndNotTheName) {
  const core::RunConfig slow = Read("preset: slow-link\n");
  EXPECT_THAT(RunConfigJson(slow), Not(HasSubstr("preset")));
  EXPECT_EQ(*ParseRunConfig(SerializeRunConfig(slow)), slow);
  EXPECT_EQ(Read("preset: slow-link\n", &slow), slow) << "a restart with the same file";
}

TEST(Presets, UnknownNameIsRefusedWithTheLine) {
  EXPECT_EQ(ParseRunYaml("run_id: d\npreset: slow\n", "run.yaml").status().message(),
            "run.yaml:2: preset: expected balanced | slow-link | sparse | float32, got slow");
}

TEST(Presets, NoteSaysWhatOneStandsFor) {
  EXPECT_THAT(PresetNote("run_id: d\npreset: balanced\n"),
              HasSubstr("preset balanced: codec.up=int4, codec.down=int4"));
  EXPECT_EQ(PresetNote("run_id: d\n"), "");
  EXPECT_EQ(PresetNote("run_id: d\npreset: slow\n"), "");
}

// A run stored before the key goes on as it was.
TEST(CodecGain, IsOnInANewRunAndOffInOneStoredWithoutTheKey) {
  EXPECT_TRUE(Read("").codec_gain);
  EXPECT_FALSE(Read("outer: {codec_gain: false}\n").codec_gain);
  v1::RunConfig old;
  old.set_run_id("d");
  const auto stored = ParseRunConfig(old.SerializeAsString());
  ASSERT_TRUE(stored.ok()) << stored.status();
  EXPECT_FALSE(stored->codec_gain);
  EXPECT_FALSE(Read("", &*stored).codec_gain);
  EXPECT_THAT(std::string(ParseRunYaml("run_id: d\nouter: {codec_gain: 2}\n", "run.yaml").status().message()),
              HasSubstr("run.yaml:2: outer.codec_gain: expected true or false, got 2"));
}

core::RunConfig OfRun(const std::string& yaml = "") { return *ParseRunYaml("run_id: r\n" + yaml, "run.yaml"); }

TEST(Settings, EveryFieldOfTheSchemaIsOne) {
  const auto check = [](const auto& check, const google::protobuf::Descriptor& section,
                        const std::string& path) -> void {
    for (int i = 0; i < section.field_count(); ++i) {
      const auto& field = *section.field(i);
      const std::string key = path.empty() ? field.name() : path + "." + field.name();
      const bool is_list = field.message_type() != nullptr && field.message_type()->options().GetExtension(v1::is_list);
      if (field.message_type() != nullptr && !field.is_map() && !is_list) {
        check(check, *field.message_type(), field.is_repeated() ? key + "[]" : key);
      } else {
        EXPECT_NE(FindSetting(key), nullptr) << key;
      }
    }
  };
  check(check, *v1::RunConfig::descriptor(), "");
}

TEST(Settings, EachHasASentenceAndIsThereOnce) {
  std::set<std::string> keys;
  for (const Setting& setting : Settings()) {
    EXPECT_TRUE(keys.insert(setting.key).second) << setting.key;
    EXPECT_FALSE(setting.says.empty()) << setting.key;
    EXPECT_FALSE(setting.expected.empty()) << setting.key;
    EXPECT_FALSE(setting.settable && setting.holds == Holds::kFixed) << setting.key;
  }
  EXPECT_EQ(FindSetting("inner.lr")->standard, "0.003");
  EXPECT_EQ(FindSetting("inner.batch_by_site.eu")->key, "inner.batch_by_site");
  EXPECT_EQ(FindSetting("inner.lrr"), nullptr);
}

TEST(ChangedConfig, TakesWhatIsTypedAndChecksItBesideTheRest) {
  const auto changed =
      ChangedConfig(OfRun(), {{"inner.lr", "1e-4"}, {"codec.up", "sign"}, {"membership.min_quorum", "2"}});
  ASSERT_TRUE(changed.ok()) << changed.status();
  EXPECT_EQ(changed->inner.lr, 1e-4);
  EXPECT_EQ(changed->codec.up, core::CodecId::kSign);
  EXPECT_THAT(ConfigChanges(OfRun(), *changed), ElementsAre("codec.up: \"int4\" → \"sign\"", "inner.lr: 0.003 → 0.0001",
                                                            "membership.min_quorum: 1 → 2 (at once)"));
}

TEST(ChangedConfig, SaysWhyNot) {
  const auto why = [](const core::RunConfig& run, const SettingsChanges& changes) {
    return std::string(ChangedConfig(run, changes).status().message());
  };
  EXPECT_EQ(why(OfRun(), {{"outer.lr", "fast"}}), "outer.lr: expected a number, got fast");
  EXPECT_EQ(why(OfRun(), {{"outer.lr", "-1"}}), "outer.lr: expected a number of 0 or more, got -1");
  EXPECT_EQ(why(OfRun(), {{"outer.lr", "1"}, {"outer.lr", "2"}}), "outer.lr: expected each key once, got it again");
  EXPECT_THAT(why(OfRun(), {{"outer.rate", "1"}}), HasSubstr("outer.rate: expected"));
  EXPECT_THAT(why(OfRun(), {{"lr", "1"}}), HasSubstr("lr: expected"));
  EXPECT_THAT(why(OfRun(), {{"model.hidden_size", "64"}}), HasSubstr("is fixed for a run"));
  EXPECT_THAT(why(OfRun(), {{"sync.sync_every", "30"}}), HasSubstr("cannot change in a running run yet"));
  EXPECT_THAT(why(OfRun(), {{"checkpoint.keep", "3"}}), HasSubstr("at the next start"));
  EXPECT_THAT(why(OfRun("model: {kind: external}"), {{"inner.lr", "1"}}),
              HasSubstr("the sites' scripts own their optimizer"));
  EXPECT_THAT(why(OfRun("sync: {mode: quorum}"), {{"codec.up", "int8"}}), HasSubstr("quorum mode"));
  const core::RunConfig automatic = OfRun("codec: {up: auto}");
  for (const char* codec : {"rotated_lm4", "rotated_sign"}) {  // the latter is what it begins with
    EXPECT_THAT(why(automatic, {{"codec.up", codec}}), HasSubstr("auto cannot begin or end in a running run"));
  }
  EXPECT_THAT(why(OfRun(), {{"codec.up", "rotated_lm4"}}), HasSubstr("residuals cannot pass"));
  // topk128 is what sparse stands for with two sites.
  const core::RunConfig sparse = OfRun("codec: {up: topk, down: sparse}\nmembership: {min_sites: 2}");
  EXPECT_THAT(why(sparse, {{"codec.down", "topk128"}}), HasSubstr("sparse cannot begin or end in a running run"));
  EXPECT_THAT(why(OfRun("codec: {up: topk, down: topk128}\nmembership: {min_sites: 2}"), {{"codec.down", "sparse"}}),
              HasSubstr("sparse cannot begin or end in a running run"));
  EXPECT_EQ(why(sparse, {{"membership.min_sites", "3"}}), "");
  EXPECT_EQ(why(OfRun("codec: {feedback_up: 0}"), {{"codec.up", "rotated_lm4"}}), "");
}

TEST(ChangedConfig, AMomentumMayGoAndComeBack) {
  const auto without = ChangedConfig(OfRun(), {{"outer.momentum", "0"}});
  ASSERT_TRUE(without.ok()) << without.status();
  const auto with = ChangedConfig(*without, {{"outer.momentum", "0.5"}});
  ASSERT_TRUE(with.ok()) << with.status();
  EXPECT_EQ(with->outer.momentum, 0.5f);
}

TEST(ConfigAtStart, TakesFromTheFileWhatEachStartTakes) {
  const core::RunConfig run = OfRun(), file = OfRun("inner: {lr: 0.1}\ncheckpoint: {keep: 9}\neval: {batches: 3}");
  const core::RunConfig config = ConfigAtStart(run, file);
  EXPECT_EQ(config.checkpoint.keep, 9);
  EXPECT_EQ(config.inner.lr, run.inner.lr);
  EXPECT_THAT(
      ConfigDifferences(config, file),
      ElementsAre("eval.batches (3; the run has 8): the run's value holds; it cannot change in a running run",
                  "inner.lr (0.1; the run has 0.003): the run's value holds; causewayctl set inner.lr=0.1 changes it"));
}

}  // namespace
}  // namespace causeway::formats
