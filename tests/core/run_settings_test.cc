#include "core/run_settings.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

namespace causeway::core {
namespace {

RunConfig WithLr(double lr) {
  RunConfig config;
  config.inner.lr = lr;
  return config;
}

class RunSettingsTest : public testing::Test {
 protected:
  RunSettingsTest() {
    settings_.Add({.number = 1, .step = 10, .versions = {2, 1}}, WithLr(0.2));
    settings_.Add({.number = 2, .step = 20, .versions = {3, 3}}, WithLr(0.3));
  }

  RunSettings settings_{WithLr(0.1)};
};

TEST_F(RunSettingsTest, AStepHasTheLastRevisionThatBeganByThen) {
  for (const auto& [step, lr] :
       std::vector<std::pair<Step, double>>{{1, 0.1}, {9, 0.1}, {10, 0.2}, {19, 0.2}, {20, 0.3}, {500, 0.3}}) {
    EXPECT_EQ(settings_.AtStep(step).inner.lr, lr) << step;
  }
}

TEST_F(RunSettingsTest, AVersionOfAFragmentLikewise) {
  EXPECT_EQ(settings_.AtVersion(0, 1).inner.lr, 0.1);
  EXPECT_EQ(settings_.AtVersion(1, 1).inner.lr, 0.2);
  EXPECT_EQ(settings_.AtVersion(0, 2).inner.lr, 0.2);
  EXPECT_EQ(settings_.AtVersion(1, 2).inner.lr, 0.2);
  EXPECT_EQ(settings_.AtVersion(0, 3).inner.lr, 0.3);
  EXPECT_EQ(settings_.newest().inner.lr, 0.3);
  EXPECT_EQ(settings_.first().inner.lr, 0.1);
}

TEST_F(RunSettingsTest, ARevisionThatIsKnownIsPassedOver) {
  const RunConfig* const before = &settings_.AtStep(10);
  EXPECT_FALSE(settings_.Add({.number = 1, .step = 5, .versions = {0, 0}}, WithLr(9)));
  EXPECT_FALSE(settings_.Add({.number = 2, .step = 5, .versions = {0, 0}}, WithLr(9)));
  EXPECT_EQ(&settings_.AtStep(10), before) << "references stay valid";
  EXPECT_EQ(settings_.revision(), 2);
  EXPECT_EQ(settings_.After(1).size(), 1u);
  EXPECT_EQ(settings_.After(0)[0].number, 1);
  EXPECT_TRUE(settings_.After(2).empty());
}

TEST_F(RunSettingsTest, RevisionsOfALostStateGiveWayToThoseOfItsSuccessor) {
  const RunConfig& held = settings_.newest();
  settings_.Forget();
  EXPECT_EQ(settings_.revision(), 0);
  EXPECT_EQ(settings_.AtStep(500).inner.lr, 0.1);
  EXPECT_TRUE(settings_.Add({.number = 1, .step = 30, .versions = {4, 4}}, WithLr(0.5)));
  EXPECT_EQ(settings_.AtStep(500).inner.lr, 0.5);
  EXPECT_EQ(held.inner.lr, 0.3) << "references stay valid";
}

}  // namespace
}  // namespace causeway::core
