#include "formats/presets.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "formats/run_yaml.h"

namespace causeway::formats {
namespace {

using testing::HasSubstr;
using testing::Not;

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

}  // namespace
}  // namespace causeway::formats
