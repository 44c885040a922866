// Where a joiner enters, for every shape of schedule and every order in which rounds can have been decided.
#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include "tests/server/rounds/rules_for_test.h"

namespace causeway::server {
namespace {

using ::testing::ElementsAre;
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
        RulesForTest table(rules, {}, 0);
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

TEST(Joiner, IsNotWaitedForByRoundsThatWereDueBefore) {
  // H / P < τ: fragment 0 is sent at 6, 10 …; fragment 1 at 4, 8 …; the round of fragment 1 is still open at step 6.
  const RoundSettings rules = Rules(4, 2, 3, /*min_sites=*/2);
  RulesForTest table(rules, {}, 0);
  Arrive(table, "a");
  Arrive(table, "b");
  Contribute(table, "a", 1, 0);
  Contribute(table, "a", 0, 0);
  Contribute(table, "b", 0, 0);
  const auto entered = ActionsOf<Enter>(Arrive(table, "c"));
  ASSERT_THAT(entered, SizeIs(1));
  EXPECT_EQ(entered[0].entry.step, 6);
  EXPECT_THAT(entered[0].entry.versions, ElementsAre(1, 0));
  EXPECT_THAT(entered[0].entry.first_versions, ElementsAre(1, 1));
  EXPECT_TRUE(absl::IsFailedPrecondition(Check(table, "c", 1, 0)));
  const auto closed = ActionsOf<CloseRound>(Contribute(table, "b", 1, 0));
  ASSERT_THAT(closed, SizeIs(1));
  EXPECT_THAT(Names(closed[0]), ElementsAre("a", "b"));
  EXPECT_THAT(closed[0].sites, ElementsAre("a", "b", "c"));
}

TEST(Joiner, WhoseEarlierStayContributedToTheOpenRoundContributesToTheNext) {
  RulesForTest table(Rules(8, 1, 0, 2), {}, 0);
  Arrive(table, "a");
  Arrive(table, "b");
  Contribute(table, "a", 0, 0);
  LeaveRun(table, "a");
  const auto entered = ActionsOf<Enter>(Arrive(table, "a"));
  ASSERT_THAT(entered, SizeIs(1));
  EXPECT_THAT(entered[0].entry.first_versions, ElementsAre(1));
  EXPECT_TRUE(absl::IsFailedPrecondition(Check(table, "a", 0, 0)));
  EXPECT_THAT(Names(ActionsOf<CloseRound>(Contribute(table, "b", 0, 0))[0]), ElementsAre("a", "b"));
  EXPECT_THAT(Contribute(table, "a", 0, 1), IsEmpty());
}

// Fragment 0's round was decided, fragment 1's, which was due before, was not: {1, 0}.
RulesForTest DecidedOutOfOrder() {
  RulesForTest table(Rules(4, 2, 3), {}, 0);
  Arrive(table, "a");
  Contribute(table, "a", 0, 0);
  return table;
}

TEST(Joiner, WithNobodyElseGoesBackToTheRoundThatIsBehind) {
  RulesForTest table = DecidedOutOfOrder();
  LeaveRun(table, "a");
  const auto entered = ActionsOf<Enter>(Arrive(table, "b"));
  ASSERT_THAT(entered, SizeIs(1));
  EXPECT_EQ(entered[0].entry.step, 3);  // fragment 1 is sent at 4
  EXPECT_THAT(entered[0].entry.first_versions, ElementsAre(1, 0));
  EXPECT_THAT(ActionsOf<CloseRound>(Contribute(table, "b", 1, 0)), SizeIs(1));
}

TEST(Joiner, LeftWithARoundThatNobodyCanFillJoinsAnew) {
  RulesForTest table = DecidedOutOfOrder();
  ASSERT_THAT(ActionsOf<Enter>(Arrive(table, "b"))[0].entry.first_versions, ElementsAre(1, 1));
  const auto dropped = ActionsOf<Dropped>(LeaveRun(table, "a"));
  ASSERT_THAT(dropped, SizeIs(2));
  EXPECT_EQ(dropped[1].site, "b");
  EXPECT_EQ(dropped[1].reason, "no site is left to fill the open round of fragment 1; joins anew");
  EXPECT_THAT(ActionsOf<Enter>(Arrive(table, "b"))[0].entry.first_versions, ElementsAre(1, 0));
  EXPECT_THAT(ActionsOf<CloseRound>(Contribute(table, "b", 1, 0)), SizeIs(1));
}

}  // namespace
}  // namespace causeway::server
