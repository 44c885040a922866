// The arithmetic of lengths, steps and shares; testdata/lengths.txt and values.txt have the rules.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/rounds/value_rules.h"

namespace causeway::server {
namespace {

constexpr int64_t kStepsOfARound = 8;

TEST(StepsFactor, MoreStepsMayMoveFurtherButNotMoreThanTheRoundsSinceAllowNorThanFour) {
  const int64_t many = int64_t{1} << 60;
  EXPECT_DOUBLE_EQ(StepsFactor(8, 1, kStepsOfARound), 1);
  EXPECT_DOUBLE_EQ(StepsFactor(4, 1, kStepsOfARound), 1);  // a short one is not lengthened
  EXPECT_DOUBLE_EQ(StepsFactor(16, 1, kStepsOfARound), 2);
  EXPECT_DOUBLE_EQ(StepsFactor(many, 1, kStepsOfARound), 2);
  EXPECT_DOUBLE_EQ(StepsFactor(many, 60, kStepsOfARound), 4);
}

TEST(OwnLength, IsTheLowerMedianAndTheLongestOfFewerThanFour) {
  const auto own = [](const std::vector<double>& norms) {
    MergedOfSite merged;
    for (const double norm : norms) merged.push_back({.admitted = {.norm = norm}});
    return OwnLength(merged);
  };
  EXPECT_EQ(own({}), std::nullopt);
  EXPECT_EQ(own({1, 9, 2}), 9);
  EXPECT_EQ(own({1, 9, 2, 8}), 2);
  EXPECT_EQ(own({1, 9, 2, 8, 7}), 7);
}

TEST(CappedShares, GoBeyondTheCapToTheOthersProRata) {
  const auto near = [](std::vector<double> expected) {
    return testing::Pointwise(testing::DoubleNear(1e-12), expected);
  };
  EXPECT_THAT(CappedShares(std::vector{6.0, 3.0, 1.0}, 0.5), near({0.5, 0.375, 0.125}));
  EXPECT_THAT(CappedShares(std::vector{8.0, 1.0, 1.0}, 0.4), near({0.4, 0.3, 0.3}));
  EXPECT_THAT(CappedShares(std::vector{6.0, 3.5, 0.5}, 0.45), near({0.45, 0.45, 0.1}));  // the second only then
  EXPECT_THAT(CappedShares(std::vector{6.0, 3.0, 1.0}, 0.3), near({1 / 3.0, 1 / 3.0, 1 / 3.0}));
  EXPECT_THAT(CappedShares(std::vector{1.0, 1.0}, 0.9), near({0.5, 0.5}));
}

}  // namespace
}  // namespace causeway::server
