#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "formats/run_yaml.h"

namespace causeway::formats {
namespace {

using ::testing::HasSubstr;

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

}  // namespace
}  // namespace causeway::formats
