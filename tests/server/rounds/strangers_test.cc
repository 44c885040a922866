#include "server/rounds/strangers.h"

#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "core/limits.h"

namespace causeway::server {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr core::Shard kAlone{0, 1};
const CoordinatorIdentity kOwn{.lineage = "now", .former_lineages = {"before"}, .epoch = 7, .life = 42};

Doubt DoubtOf(const std::optional<DoubtFound>& found) {
  EXPECT_TRUE(found.has_value());
  return found ? found->doubt : Doubt::kUnknownLineage;
}

TEST(Strangers, FreshSiteAndOneOfThisOrAFormerLineageAreNone) {
  EXPECT_FALSE(FindDoubt(kOwn, {}));
  EXPECT_FALSE(FindDoubt(kOwn, {.lineage = "now", .epoch = 7, .life = 42}));
  EXPECT_FALSE(FindDoubt(kOwn, {.lineage = "now", .epoch = 6, .life = 1})) << "of an earlier start";
  EXPECT_FALSE(FindDoubt(kOwn, {.lineage = "now", .epoch = 7})) << "a site of before says no life";
  EXPECT_FALSE(FindDoubt(kOwn, {.lineage = "before", .epoch = 90, .life = 1}));
}

TEST(Strangers, UnknownLineageIsToldWithBothValuesAndTheCure) {
  const auto found = FindDoubt(kOwn, {.lineage = "other", .epoch = 1});
  EXPECT_EQ(DoubtOf(found), Doubt::kUnknownLineage);
  EXPECT_THAT(found->text, HasSubstr("lineage other, this state directory is of lineage now"));
  EXPECT_THAT(found->text, HasSubstr("--rebuild_from_sites"));
}

TEST(Strangers, LaterEpochIsLostHistoryAndAnotherLifeASecondCoordinator) {
  EXPECT_EQ(DoubtOf(FindDoubt(kOwn, {.lineage = "now", .epoch = 8})), Doubt::kHistoryLost);
  EXPECT_EQ(DoubtOf(FindDoubt(kOwn, {.lineage = "now", .epoch = 7, .life = 43})), Doubt::kTwoCoordinators);
}

TEST(Strangers, NewerVersionOrUnknownAdmissionIsLostHistory) {
  const History own{.versions = {5, 4}, .admitted = {4, 4}};
  EXPECT_FALSE(FindDoubt(own, {}, kAlone));
  EXPECT_FALSE(FindDoubt(own, {.versions = {5, 3}, .admitted = {4, -1}}, kAlone));
  const auto newer = FindDoubt(own, {.versions = {5, 6}, .admitted = {}}, kAlone);
  EXPECT_THAT(newer->text, HasSubstr("holds version 6 of fragment 1, the coordinator only version 4"));
  const auto admitted = FindDoubt(own, {.versions = {5, 4}, .admitted = {5, 4}}, kAlone);
  EXPECT_THAT(admitted->text, HasSubstr("fragment 0 base 5 was admitted, the coordinator knows of none after base 4"));
  EXPECT_FALSE(FindDoubt(own, {.versions = {9, 4}, .admitted = {9, 4}}, {1, 2})) << "of another shard's fragment";
}

TEST(Strangers, AreNewsOnceAndHoldTheSeedAsLongAsTheyAskAgain) {
  constexpr int64_t kAskMs = Strangers::kAskAgainMs;
  Strangers strangers;
  EXPECT_TRUE(strangers.Note("eu", {Doubt::kUnknownLineage, "x"}, 0));
  EXPECT_FALSE(strangers.Note("eu", {Doubt::kUnknownLineage, "x"}, kAskMs));
  EXPECT_TRUE(strangers.Note("us", {Doubt::kTwoCoordinators, "y"}, kAskMs));
  EXPECT_THAT(strangers.Present(kAskMs), SizeIs(2));
  EXPECT_TRUE(strangers.HoldSeed(2 * kAskMs));
  EXPECT_FALSE(strangers.HoldSeed(6 * kAskMs)) << "it has gone";
  EXPECT_THAT(strangers.Present(6 * kAskMs), IsEmpty());
  EXPECT_TRUE(strangers.Note("eu", {Doubt::kUnknownLineage, "x"}, 6 * kAskMs)) << "and is back";
  strangers.Forget("eu");
  EXPECT_FALSE(strangers.HoldSeed(6 * kAskMs));
}

TEST(Strangers, BeyondTheNumberThatARunHoldsAreNoNews) {
  Strangers strangers;
  for (int i = 0; i < core::kMaxSites; ++i) {
    ASSERT_TRUE(strangers.Note(absl::StrCat("s", i), {Doubt::kUnknownLineage, "x"}, 0));
  }
  EXPECT_FALSE(strangers.Note("one more", {Doubt::kUnknownLineage, "x"}, 0));
  EXPECT_THAT(strangers.Present(0), SizeIs(core::kMaxSites));
}

TEST(Strangers, HoldNothingUpOnceAnOperatorHasDecided) {
  Strangers strangers;
  EXPECT_FALSE(strangers.Settle()) << "nothing to decide";
  strangers.Note("eu", {Doubt::kUnknownLineage, "x"}, 0);
  EXPECT_TRUE(strangers.Settle());
  EXPECT_FALSE(strangers.HoldSeed(0));
  EXPECT_THAT(strangers.Present(0), SizeIs(1)) << "it waits on, and its alarm stays";
  EXPECT_FALSE(strangers.Settle());
}

}  // namespace
}  // namespace causeway::server
