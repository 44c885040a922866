#include "formats/run_yaml.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/check.h"
#include "formats/yaml_message.h"
#include "tests/folders.h"
#include "tests/formats/temporary_folder.h"

namespace causeway::formats {
namespace {

using ::testing::HasSubstr;

// The error of a run.yaml that holds `text` below "run_id: demo", which is line 1.
std::string ErrorOfYaml(const std::string& text) {
  const absl::StatusOr<core::RunConfig> config = ParseRunYaml("run_id: demo\n" + text, "run.yaml");
  return config.ok() ? "accepted" : std::string(config.status().message());
}

TEST(RunYaml, WhatIsWrongIsToldWithLineKeyAndReasonAsTheCasesExpect) {
  const std::string cases = ReadAll(InSource("tests/formats/testdata/run_yaml_errors.txt"));
  int checked = 0;
  for (const absl::string_view one : absl::StrSplit(cases, "\n\n")) {
    std::string text, errors;
    for (absl::string_view line : absl::StrSplit(one, '\n', absl::SkipEmpty())) {
      const bool expected = absl::ConsumePrefix(&line, "=> ");
      if (line.substr(0, 2) != "# ") absl::StrAppend(expected ? &errors : &text, line, "\n");
    }
    if (errors.empty()) continue;  // what the file says of itself
    EXPECT_EQ(ErrorOfYaml(text) + "\n", errors) << one;
    ++checked;
  }
  EXPECT_GE(checked, 100);
}

core::RunConfig NewRun(const char* id) {
  return {.run_id = id,
          .data = {.mode = core::kDataModeOfNewRuns},
          .codec_gain = core::kCodecGainOfNewRuns,
          .values = {.clip = core::kClipOfNewRuns}};
}

TEST(RunYaml, RunIdIsRequiredAndAName) {
  const auto error = [](const char* text) { return std::string(ParseRunYaml(text, "run.yaml").status().message()); };
  EXPECT_EQ(error(""), "run.yaml:1: run_id: expected a name of 1 to 64 characters A-Z a-z 0-9 . _ -, got none");
  EXPECT_EQ(error("seed: 5\n"),
            "run.yaml:1: run_id: expected a name of 1 to 64 characters A-Z a-z 0-9 . _ -, got none");
  EXPECT_EQ(error("\nrun_id: a/b\n"),
            "run.yaml:2: run_id: expected a name of 1 to 64 characters A-Z a-z 0-9 . _ -, got a/b");
}

TEST(RunYaml, MissingFileIsNamed) {
  const absl::Status status = ReadRunYaml("/nonexistent/run.yaml").status();
  EXPECT_EQ(status.message(), "cannot open /nonexistent/run.yaml: No such file or directory");
}

TEST(RunYaml, DeeplyNestedTextIsRefused) {
  EXPECT_THAT(ErrorOfYaml("seed: " + std::string(100'000, '[')), HasSubstr("run.yaml:2: expected YAML"));
}

TEST(RunYaml, EmptySectionTakesTheDefaults) {
  const absl::StatusOr<core::RunConfig> config = ParseRunYaml("run_id: a\nsync:\n  # sync_every: 5\n", "run.yaml");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(*config, NewRun("a"));
}

TEST(RunYaml, NumbersTakeEveryFormOfTheirType) {
  const absl::StatusOr<core::RunConfig> config = ParseRunYaml(
      "{run_id: 7, seed: 18446744073709551615, inner: {lr: 1e-3, clip: 2, weight_decay: .5, warmup_steps: +3}}", "f");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->run_id, "7");
  EXPECT_EQ(config->seed, 18446744073709551615u);
  EXPECT_EQ(config->inner.lr, 0.001);
  EXPECT_EQ(config->inner.clip, 2);
  EXPECT_EQ(config->inner.weight_decay, 0.5);
  EXPECT_EQ(config->inner.warmup_steps, 3);
}

TEST(RunYaml, CodecsOfBothLegsTheirExceptionsAndCompression) {
  const absl::StatusOr<core::RunConfig> config = ParseRunYaml(
      "run_id: a\n"
      "codec: {up: onebit_adam_sign, down: rotated_lm2, exempt: [norm, embedding], zstd: true}\n",
      "f");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->codec.up, core::CodecId::kOnebitAdamSign);
  EXPECT_EQ(config->codec.down, core::CodecId::kRotatedLm2);
  EXPECT_EQ(config->codec.exempt, (std::vector{core::TensorKind::kNorm, core::TensorKind::kEmbedding}));
  EXPECT_TRUE(config->codec.zstd);
}

TEST(RunYaml, LengthOfARowIsTheModelsUnlessItIsGiven) {
  const auto length = [](const std::string& inner) {
    const auto config = ParseRunYaml("run_id: a\nmodel: {max_position_embeddings: 512}\n" + inner, "f");
    return config.ok() ? config->sequence_length() : -1;
  };
  EXPECT_EQ(length(""), 512);
  EXPECT_EQ(length("inner: {sequence_length: 0}\n"), 512);
  EXPECT_EQ(length("inner: {sequence_length: 64}\n"), 64);
}

TEST(RunYaml, OuterSgdHasNoMomentum) {
  const absl::StatusOr<core::RunConfig> config = ParseRunYaml("run_id: a\nouter: {optimizer: sgd, lr: 1}\n", "f");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->outer, (core::OuterParameters{.lr = 1, .momentum = 0}));
}

TEST(RunYaml, AnySitesGradientMayBeNan) {
  const absl::StatusOr<core::RunConfig> config = ParseRunYaml(
      "run_id: a\nsync: {num_fragments: 1}\n"
      "model: {kind: synthetic, tensors: [{name: w, shape: [3, 2], init: 0.25}], gradient: {by_site: {a: .nan, b: "
      "0.5}}}\n",
      "f");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(std::isnan(config->synthetic.gradient_by_site.at("a")));
  EXPECT_EQ(config->synthetic.gradient_by_site.at("b"), 0.5f);
  EXPECT_EQ(config->synthetic.tensors[0], (core::SyntheticTensor{"w", {3, 2}, 0.25f}));
}

TEST(RunYaml, TheExampleHasEveryKeyWithItsDefault) {
  const std::string path = InSource("deploy/run.yaml");
  const absl::StatusOr<core::RunConfig> config = ReadRunYaml(path);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(*config, NewRun("demo"));

  // Every key of the JSON stands in the example, too: `"key":` there, `key:` here.
  const std::string example = ReadAll(path);
  const std::string json = RunConfigJson(NewRun("demo"));
  for (size_t at = json.find("\":"); at != std::string::npos; at = json.find("\":", at + 1)) {
    const size_t begin = json.rfind('"', at - 1) + 1;
    EXPECT_THAT(example, HasSubstr(json.substr(begin, at - begin) + ":"));
  }
}

TEST(Placement, PlacementAtSitesTakesAPartOfEachFragmentForEachShard) {
  auto config = ParseRunYaml("run_id: r\nplacement: sites\n", "f");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->sync.parts, 1);
  ASSERT_TRUE(PlaceShards(3, &*config).ok());
  EXPECT_EQ(config->sync.parts, 3);
  EXPECT_TRUE(PlaceShards(3, &*config).ok());  // again, as a start does
  EXPECT_THAT(std::string(PlaceShards(2, &*config).message()), HasSubstr("as many as sync.parts, 3; got 2"));
  config->sync.parts = 1;
  EXPECT_THAT(std::string(PlaceShards(1, &*config).message()), HasSubstr("at least 2; got 1"));
  config->placement = core::Placement::kHub;
  EXPECT_TRUE(PlaceShards(1, &*config).ok());
  EXPECT_EQ(config->sync.parts, 1);
}

TEST(Placement, PartsNeedTheAverageAndEnoughUnits) {
  EXPECT_THAT(std::string(ParseRunYaml("run_id: r\nsync: {parts: 2}\nmembership: {merge: radial_directional}\n", "f")
                              .status()
                              .message()),
              HasSubstr("average with sync.parts"));
  EXPECT_THAT(std::string(ParseRunYaml("run_id: r\nsync: {parts: 200}\n", "f").status().message()),
              HasSubstr("sync.parts: expected at most"));
}

TEST(LevelsYaml, LevelsOfASiteAndTheWanAreRead) {
  const auto levels = ParseLevelsYaml(
      "levels:\n"
      "  - {name: pair, of: 2, gbyte_per_s: 200, latency_us: 2}\n"
      "  - {name: node, of: 4, gbyte_per_s: 50}\n"
      "  - {name: wan, of: 3, mbit_per_s: 200, rtt_ms: 50}\n",
      "l.yaml");
  ASSERT_TRUE(levels.ok()) << levels.status();
  EXPECT_EQ(levels->ranks(), 8);
  EXPECT_EQ(levels->site[0], (core::LinkLevel{.name = "pair", .of = 2, .bytes_per_s = 200e9, .latency_s = 2e-6}));
  EXPECT_EQ(levels->site[1].latency_s, 0);
  EXPECT_EQ(*levels->wan, (core::LinkLevel{.name = "wan", .of = 3, .bytes_per_s = 25e6, .latency_s = 25e-3}));
}

std::string Refusal(const std::string& levels) {
  return std::string(ParseLevelsYaml("levels:\n" + levels, "l.yaml").status().message());
}

TEST(LevelsYaml, WhatIsWrongIsToldWithLineKeyAndExpectation) {
  EXPECT_EQ(Refusal("  - {name: a, of: 0, gbyte_per_s: 1}\n"), "l.yaml:2: levels[0].of: expected 1 to 1000000, got 0");
  EXPECT_EQ(Refusal("  - {name: a, of: 2}\n"),
            "l.yaml:2: levels[0]: expected gbyte_per_s (within a site) or mbit_per_s (between sites), got neither");
  EXPECT_EQ(Refusal("  - {name: a, of: 2, gbyte_per_s: 1, rtt_ms: 3}\n"),
            "l.yaml:2: levels[0]: expected latency_us beside gbyte_per_s, got rtt_ms");
  EXPECT_EQ(Refusal("  - {name: a, of: 2, gbyte_per_s: 1}\n  - {name: a, of: 2, gbyte_per_s: 1}\n"),
            "l.yaml:3: levels[1].name: expected each level's name once, got a again");
  EXPECT_EQ(Refusal("  - {name: w, of: 2, mbit_per_s: 1}\n  - {name: a, of: 2, gbyte_per_s: 1}\n"),
            "l.yaml:2: levels[0]: expected mbit_per_s (between sites) in the last level alone, got it before");
  EXPECT_EQ(Refusal("  - {name: w, of: 2, mbit_per_s: 1}\n"),
            "l.yaml:1: levels: expected 1 to 8 levels, with gbyte_per_s in the first, got 1 levels, 0 of them within a "
            "site");
  EXPECT_EQ(Refusal("  - {name: a, of: 1000000, gbyte_per_s: 1}\n  - {name: b, of: 2, gbyte_per_s: 1}\n"),
            "l.yaml:3: levels[1].of: expected 1 to 1000000 (ranks of a site, all levels together), got 2000000");
  EXPECT_EQ(Refusal("  - {name: a, of: 2, gbyte: 1}\n"),
            "l.yaml:2: levels[0].gbyte: expected one of name, of, gbyte_per_s, latency_us, mbit_per_s, rtt_ms, got an "
            "unknown key");
}

TEST(LevelsYaml, TheExampleIsRight) {
  const auto levels = ReadLevelsYaml(EXAMPLE_LEVELS);
  ASSERT_TRUE(levels.ok()) << levels.status();
  EXPECT_EQ(levels->ranks(), 384);
}

}  // namespace
}  // namespace causeway::formats
