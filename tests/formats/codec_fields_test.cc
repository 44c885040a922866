// The section `codec` of run.yaml.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "formats/run_yaml.h"

namespace causeway::formats {
namespace {

using ::testing::HasSubstr;

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

}  // namespace
}  // namespace causeway::formats
