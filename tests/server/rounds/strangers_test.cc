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

bool Proven(const Claim&) { return true; }
bool Unproven(const Claim&) { return false; }

Doubt DoubtOf(const std::optional<DoubtFound>& found) {
  EXPECT_TRUE(found.has_value());
  return found ? found->doubt : Doubt::kUnknownLineage;
}

TEST(Strangers, FreshSiteAndOneOfThisOrAFormerLineageAreNone) {
  EXPECT_FALSE(FindDoubt(kOwn, {}, Proven));
  EXPECT_FALSE(FindDoubt(kOwn, {.lineage = "now", .epoch = 7, .life = 42}, Proven));
  EXPECT_FALSE(FindDoubt(kOwn, {.lineage = "now", .epoch = 6, .life = 1}, Proven)) << "of an earlier start";
  EXPECT_FALSE(FindDoubt(kOwn, {.lineage = "now", .epoch = 7}, Proven)) << "a site of before says no life";
  EXPECT_FALSE(FindDoubt(kOwn, {.lineage = "before", .epoch = 90, .life = 1}, Proven));
}

TEST(Strangers, UnknownLineageIsToldWithBothValuesAndTheCure) {
  const auto found = FindDoubt(kOwn, {.lineage = "other", .epoch = 1}, Proven);
  EXPECT_EQ(DoubtOf(found), Doubt::kUnknownLineage);
  EXPECT_THAT(found->text, HasSubstr("lineage other, this state directory is of lineage now"));
  EXPECT_THAT(found->text, HasSubstr("--rebuild_from_sites"));
}

TEST(Strangers, LaterEpochIsLostHistoryAndAnotherLifeASecondCoordinator) {
  EXPECT_EQ(DoubtOf(FindDoubt(kOwn, {.lineage = "now", .epoch = 8}, Proven)), Doubt::kHistoryLost);
  EXPECT_EQ(DoubtOf(FindDoubt(kOwn, {.lineage = "now", .epoch = 7, .life = 43}, Proven)), Doubt::kTwoCoordinators);
}

TEST(Strangers, NewerVersionOrUnknownAdmissionIsLostHistory) {
  const History own{.versions = {5, 4}, .admitted = {4, 4}};
  EXPECT_FALSE(FindDoubt(own, {}, kAlone, Proven));
  EXPECT_FALSE(FindDoubt(own, {.versions = {5, 3}, .admitted = {4, -1}}, kAlone, Proven));
  const auto newer = FindDoubt(own, {.versions = {5, 6}, .admitted = {}}, kAlone, Proven);
  EXPECT_THAT(newer->text, HasSubstr("holds version 6 of fragment 1, the coordinator only version 4"));
  const auto admitted = FindDoubt(own, {.versions = {5, 4}, .admitted = {5, 4}}, kAlone, Proven);
  EXPECT_THAT(admitted->text, HasSubstr("fragment 0 base 5 was admitted, the coordinator knows of none after base 4"));
  EXPECT_FALSE(FindDoubt(own, {.versions = {9, 4}, .admitted = {9, 4}}, {1, 2}, Proven))
      << "of another shard's fragment";
}

TEST(Strangers, ClaimsOfMoreThatAreNotProvenMakeTheirTellerWaitAlone) {
  EXPECT_EQ(DoubtOf(FindDoubt(kOwn, {.lineage = "now", .epoch = 8}, Unproven)), Doubt::kUnprovenClaim);
  EXPECT_EQ(DoubtOf(FindDoubt(kOwn, {.lineage = "now", .epoch = 7, .life = 43}, Unproven)), Doubt::kUnprovenClaim);
  EXPECT_EQ(DoubtOf(FindDoubt(kOwn, {.lineage = "other", .epoch = 1}, Unproven)), Doubt::kUnprovenClaim);
  const History own{.versions = {5, 4}, .admitted = {4, 4}};
  const auto found = FindDoubt(own, {.versions = {5, 1'000'000}, .admitted = {}}, kAlone, Unproven);
  EXPECT_EQ(DoubtOf(found), Doubt::kUnprovenClaim);
  EXPECT_THAT(found->text, HasSubstr("holds version 1000000 of fragment 1, the coordinator only version 4"));
  EXPECT_THAT(found->text, HasSubstr("shows no proof"));
  EXPECT_EQ(DoubtOf(FindDoubt(own, {.versions = {5, 4}, .admitted = {9, 4}}, kAlone, Unproven)), Doubt::kUnprovenClaim);
  EXPECT_FALSE(FindDoubt(own, {.versions = {5, 4}, .admitted = {4, 4}}, kAlone, Unproven)) << "no more than is known";
}

TEST(Strangers, OneProvenClaimAmongOthersIsLostHistory) {
  const History own{.versions = {5, 4}, .admitted = {4, 4}};
  const auto second = [](const Claim& claim) { return claim.fragment == 1; };
  const auto found = FindDoubt(own, {.versions = {6, 5}, .admitted = {}}, kAlone, second);
  EXPECT_EQ(DoubtOf(found), Doubt::kHistoryLost);
  EXPECT_THAT(found->text, HasSubstr("version 5 of fragment 1"));
}

TEST(Strangers, AreNewsOnceAndPresentAsLongAsTheyAskAgain) {
  constexpr int64_t kAskMs = Strangers::kAskAgainMs;
  Strangers strangers;
  EXPECT_TRUE(strangers.Note("eu", {Doubt::kUnknownLineage, "x"}, 0));
  EXPECT_FALSE(strangers.Note("eu", {Doubt::kUnknownLineage, "x"}, kAskMs));
  EXPECT_TRUE(strangers.Note("us", {Doubt::kTwoCoordinators, "y"}, kAskMs));
  EXPECT_THAT(strangers.Present(kAskMs), SizeIs(2));
  EXPECT_THAT(strangers.Present(6 * kAskMs), IsEmpty());
  EXPECT_TRUE(strangers.Note("eu", {Doubt::kUnknownLineage, "x"}, 6 * kAskMs)) << "and is back";
  strangers.Forget("eu");
  EXPECT_THAT(strangers.Present(6 * kAskMs), IsEmpty());
}

TEST(Strangers, BeyondTheNumberThatARunHoldsAreNoNews) {
  Strangers strangers;
  for (int i = 0; i < core::kMaxSites; ++i) {
    ASSERT_TRUE(strangers.Note(absl::StrCat("s", i), {Doubt::kUnknownLineage, "x"}, 0));
  }
  EXPECT_FALSE(strangers.Note("one more", {Doubt::kUnknownLineage, "x"}, 0));
  EXPECT_THAT(strangers.Present(0), SizeIs(core::kMaxSites));
}

TEST(Strangers, MissAnEndWhereNewerVersionsAreProvenButNoLaterEpoch) {
  Strangers strangers;
  strangers.Note("a",
                 *FindDoubt({.versions = {5}, .admitted = {}}, {.versions = {9}, .admitted = {}}, kAlone, Unproven), 0);
  EXPECT_FALSE(strangers.MissesAnEnd());
  strangers.Note("b", *FindDoubt({.versions = {5}, .admitted = {}}, {.versions = {6}, .admitted = {}}, kAlone, Proven),
                 0);
  EXPECT_TRUE(strangers.MissesAnEnd());
  strangers.Note("c", *FindDoubt(kOwn, {.lineage = "now", .epoch = 8}, Proven), 0);
  EXPECT_FALSE(strangers.MissesAnEnd()) << "a copy of before lacks more than its end";
}

}  // namespace
}  // namespace causeway::server
