// Where a joiner enters, for every shape of schedule: beside testdata/joiners.txt.
#include <gmock/gmock-matchers.h>
#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "core/limits.h"
#include "server/rounds/codec_choice.h"
#include "server/rounds/strangers.h"
#include "tests/server/rounds/rules_for_test.h"

namespace causeway::server {
namespace {

using core::CodecId;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int64_t kSyncEvery = 8;

// Site a alone runs until the end of inner step `t`, and contributes to every round when it is due.
void RunAlone(RulesForTest& table, const core::FragmentSchedule& schedule, core::Step t) {
  for (core::Step step = 1; step <= t; ++step) {
    for (core::FragmentId p = 0; p < schedule.num_fragments(); ++p) {
      if (const core::Version base = schedule.SendsAt(p, step); base >= 0) Contribute(table, "a", p, base);
    }
  }
}

TEST(Joiner, EntersAtTheLastDecidedSendAndContributesFromItsNextOne) {
  for (int fragments = 1; fragments <= 4; ++fragments) {
    for (int64_t delay = 0; delay < kSyncEvery; ++delay) {
      for (core::Step t = 0; t < 4 * kSyncEvery; ++t) {
        RoundSettings rules = Rules(kSyncEvery, fragments, delay);
        if (t % 2 == 1) rules.sync.first_send = core::FirstSend::kOffset;
        for (int p = 0; p < fragments && t % 3 == 1; ++p)
          rules.sync.fragment_offsets.push_back((5 * p + t) % kSyncEvery);
        const core::FragmentSchedule schedule = rules.sync.Schedule();
        RulesForTest table(rules);
        Arrive(table, "a");
        RunAlone(table, schedule, t);
        const auto entered = ActionsOf<Enter>(Arrive(table, "b"));
        ASSERT_THAT(entered, SizeIs(1));
        const core::Entry& entry = entered[0].entry;
        ASSERT_THAT(entry.sites, ElementsAre("a", "b"));
        ASSERT_EQ(entry.versions, table.state().versions);
        ASSERT_LE(entry.step, t);
        for (core::FragmentId p = 0; p < fragments; ++p) {
          // Nothing is decided that it enters before, and all that is open is still to be sent.
          const core::Version decided = entry.versions[p];
          ASSERT_TRUE(decided == 0 || schedule.SendStep(p, decided - 1) <= entry.step);
          ASSERT_EQ(entry.first_versions[p], entry.versions[p]);
          ASSERT_GT(schedule.SendStep(p, entry.first_versions[p]), entry.step);
        }
      }
    }
  }
}

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
  const auto of_the_first =
      FindDoubt({.versions = {1}, .admitted = {0}}, {.versions = {}, .admitted = {1}}, kAlone, Proven);
  EXPECT_THAT(of_the_first->text, HasSubstr("base 1 was admitted, the coordinator knows of none after base 0"));
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
  EXPECT_TRUE(strangers.Note("us", {Doubt::kHistoryLost, "z"}, kAskMs)) << "another doubt";
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
  EXPECT_FALSE(strangers.MissesAnEnd(1));
  strangers.Note("b", *FindDoubt({.versions = {5}, .admitted = {}}, {.versions = {6}, .admitted = {}}, kAlone, Proven),
                 0);
  EXPECT_TRUE(strangers.MissesAnEnd(1));
  EXPECT_FALSE(strangers.MissesAnEnd(2)) << "one has proven nothing";
  strangers.Note("c", *FindDoubt(kOwn, {.lineage = "now", .epoch = 8}, Proven), 0);
  EXPECT_FALSE(strangers.MissesAnEnd(1)) << "a copy of before lacks more than its end";
}

// In a round of 10 s, on 1 MB/s, 4 bits take 8 s, 2 bits 4 s and 1 bit 2 s.
const std::vector<CodecOption> kOptions = {
    {CodecId::kRotatedLm4, 8'000'000}, {CodecId::kRotatedLm2, 4'000'000}, {CodecId::kRotatedSign, 2'000'000}};
constexpr double kRoundS = 10;

CodecId ChosenAt(CodecChoice& choice, double megabytes_per_s) {
  choice.Choose({{"asia", megabytes_per_s * 1e6}, kRoundS});
  return choice.codec();
}

TEST(CodecChoice, BeginsWithTheCheapestAndKeepsItWhileNothingIsMeasured) {
  CodecChoice choice(kOptions);
  EXPECT_EQ(choice.codec(), CodecId::kRotatedSign);
  EXPECT_FALSE(choice.Choose({{"asia", 0}, kRoundS}));
  EXPECT_EQ(choice.codec(), CodecId::kRotatedSign);
  EXPECT_EQ(choice.reason(), "rotated_sign, the cheapest: the link of asia is not measured yet");
  EXPECT_FALSE(choice.Choose({{"asia", 1e9}, 0}));
  EXPECT_EQ(choice.reason(), "rotated_sign, the cheapest: the time of a step is not measured yet");
  EXPECT_FALSE(choice.Choose({{"", 0}, kRoundS}));
  EXPECT_EQ(choice.reason(), "rotated_sign: no site is active");
}

TEST(CodecChoice, TakesTheBestThatFitsTheRoundOnTheSlowestLink) {
  for (const auto& [rate, codec] : {std::pair{10.0, CodecId::kRotatedLm4},
                                    {1.3, CodecId::kRotatedLm4},
                                    {1.1, CodecId::kRotatedLm2},
                                    {0.6, CodecId::kRotatedSign},
                                    {0.001, CodecId::kRotatedSign}}) {
    CodecChoice choice(kOptions);
    EXPECT_EQ(ChosenAt(choice, rate), codec) << rate;
  }
}

TEST(CodecChoice, ACheaperOneIsTakenAtOnceAndABetterOneOnlyWithRoomToSpare) {
  CodecChoice choice(kOptions);
  EXPECT_EQ(ChosenAt(choice, 1.24), CodecId::kRotatedLm4);  // 6.5 s of 10
  EXPECT_EQ(ChosenAt(choice, 1.01), CodecId::kRotatedLm4);  // 7.9 s: stays
  EXPECT_EQ(ChosenAt(choice, 1.00), CodecId::kRotatedLm4);  // 8 s: just
  EXPECT_EQ(ChosenAt(choice, 0.99), CodecId::kRotatedLm2);  // 8.1 s: not any more
  EXPECT_EQ(ChosenAt(choice, 1.22), CodecId::kRotatedLm2);  // 6.6 s: not yet again
  EXPECT_EQ(ChosenAt(choice, 1.24), CodecId::kRotatedLm4);
  EXPECT_EQ(ChosenAt(choice, 0.3), CodecId::kRotatedSign);  // past the one in between
}

TEST(CodecChoice, ARateThatSwaysBetweenTheThresholdsChangesNothing) {
  CodecChoice choice(kOptions);
  ChosenAt(choice, 2);
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(choice.Choose({{"asia", (i % 2 == 0 ? 1.01 : 1.2) * 1e6}, kRoundS}));
}

TEST(CodecChoice, AnUnmeasuredNewcomerTakesItDownUntilItIsMeasured) {
  CodecChoice choice(kOptions);
  EXPECT_TRUE(choice.Choose({{"eu", 5e6}, kRoundS}));
  EXPECT_TRUE(choice.Choose({{"new", 0}, kRoundS}));
  EXPECT_EQ(choice.codec(), CodecId::kRotatedSign);
  EXPECT_TRUE(choice.Choose({{"eu", 5e6}, kRoundS}));
  EXPECT_EQ(choice.codec(), CodecId::kRotatedLm4);
}

TEST(CodecChoice, SaysWhatTheCodecNeedsAndWhatTheBetterOneWould) {
  CodecChoice choice(kOptions);
  ChosenAt(choice, 1);
  EXPECT_EQ(
      choice.reason(),
      "rotated_lm2: 4 MB a round need 4 s of 10 s on the slowest link (asia, 1 MB/s); rotated_lm4 would need 8 s, "
      "and is taken up to 6.5 s");
  ChosenAt(choice, 4);
  EXPECT_EQ(choice.reason(), "rotated_lm4: 8 MB a round need 2 s of 10 s on the slowest link (asia, 4 MB/s)");
}

core::Progress ProgressOf(core::Step step, double compute_s, const core::LinkProgress& link = {}) {
  core::Progress progress;
  progress.step = step;
  progress.compute_s = compute_s;
  progress.link = link;
  return progress;
}

TEST(SiteSpeeds, TheSlowestOfTheSitesThatAreAskedFor) {
  SiteSpeeds speeds;
  speeds.Heard("a", ProgressOf(0, 0, {.up_bytes_per_s = 5, .down_bytes_per_s = 1}));
  speeds.Heard("b", ProgressOf(0, 0, {.up_bytes_per_s = 3, .down_bytes_per_s = 7}));
  EXPECT_EQ(speeds.SlowestLink({"a", "b"}, SiteSpeeds::Leg::kUp).site, "b");
  EXPECT_EQ(speeds.SlowestLink({"a", "b"}, SiteSpeeds::Leg::kDown).bytes_per_s, 1);
  EXPECT_EQ(speeds.SlowestLink({"a"}, SiteSpeeds::Leg::kUp).bytes_per_s, 5);
  EXPECT_EQ(speeds.SlowestLink({"a", "b", "c"}, SiteSpeeds::Leg::kUp).site, "c");
  EXPECT_EQ(speeds.SlowestLink({}, SiteSpeeds::Leg::kUp).site, "");
  speeds.Heard("d", ProgressOf(0, 0, {.up_bytes_per_s = 5, .down_bytes_per_s = 1}));
  EXPECT_EQ(speeds.SlowestLink({"a", "d"}, SiteSpeeds::Leg::kDown).site, "a") << "the first of several";
}

TEST(SiteSpeeds, WhatShortTransfersReachCountsWhereItIsMoreThanWasMeasured) {
  SiteSpeeds speeds;
  speeds.Heard("a", ProgressOf(0, 0, {.up_bytes_per_s = 5, .up_least_bytes_per_s = 4}));
  EXPECT_EQ(speeds.SlowestLink({"a"}, SiteSpeeds::Leg::kUp).bytes_per_s, 5);
  speeds.Heard("a", ProgressOf(0, 0, {.up_bytes_per_s = 5, .up_least_bytes_per_s = 8}));  // the link got faster
  EXPECT_EQ(speeds.SlowestLink({"a"}, SiteSpeeds::Leg::kUp).bytes_per_s, 8);
}

TEST(SiteSpeeds, AStepTakesWhatTheSlowestSiteComputesAndNotWhatItWaits) {
  SiteSpeeds speeds;
  EXPECT_EQ(speeds.StepS({"a"}), 0);
  for (int i = 1; i < 5; ++i) {
    speeds.Heard("a", ProgressOf(10 * i, 1.0 * i));
    speeds.Heard("b", ProgressOf(10 * i, 2.5 * i));
  }
  EXPECT_DOUBLE_EQ(speeds.StepS({"a", "b"}), 0.25);
  EXPECT_DOUBLE_EQ(speeds.StepS({"a", "unknown"}), 0.1);
  speeds.Heard("a", ProgressOf(50, 0.01));  // entered anew: computed since then, a step from elsewhere
  EXPECT_DOUBLE_EQ(speeds.StepS({"a"}), 0.1);
}

}  // namespace
}  // namespace causeway::server
