// The rules of a run with several coordinators: shard 0 decides who is in, the others follow it.
#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include "tests/server/rounds/rules_for_test.h"

namespace causeway::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int64_t kEvery = 8;
constexpr int kFragments = 4;

RoundSettings RulesOf(int shard, int min_sites) {
  RoundSettings rules = Rules(kEvery, kFragments, /*delay=*/0, min_sites);
  rules.shard = {shard, 2};
  return rules;
}

// Two shards of a run; fragments 0 and 2 are the first's, 1 and 3 the second's.
class ShardsTest : public ::testing::Test {
 protected:
  ShardsTest() : ShardsTest(1) {}
  explicit ShardsTest(int min_sites)
      : schedule(RulesOf(0, 1).sync.Schedule()),
        lead(RulesOf(0, min_sites), {}, 0),
        follower(RulesOf(1, min_sites), {}, 0) {}

  // Shard 0's decisions reach the other, and their consequences there come back.
  Actions Tell() {
    Actions actions = follower.Follow(lead.membership(), 0);
    lead.HeardOfShard(1, follower.report());
    return actions;
  }

  // Joins both shards, the model is there, and is ready; the follower's part of its place.
  Actions ArriveAtBoth(const core::SiteId& site) {
    lead.Join({.site = site, .session = SessionOf(site), .held = {}}, 0);
    Tell();
    JoinFollower(site);
    lead.Seeded();
    follower.Seeded();
    Tell();
    lead.Ready(site, SessionOf(site));
    return Tell();
  }

  int64_t StayOf(const core::SiteId& site) const { return lead.state().sites.at(site).stay; }

  Joined JoinFollower(const core::SiteId& site) {
    return follower.Join({.site = site, .session = SessionOf(site), .held = {}, .stay = StayOf(site)}, 0);
  }

  // All of these sites go on until the end of inner step `t`, and every contribution arrives.
  void Train(const std::vector<core::SiteId>& sites, core::Step t) {
    for (core::Step step = 1; step <= t; ++step) {
      for (core::FragmentId p = 0; p < kFragments; ++p) {
        const core::Version base = schedule.SendsAt(p, step);
        RulesForTest& owner = p % 2 == 0 ? lead : follower;
        for (const core::SiteId& site : sites) {
          const bool sends = step > trained[site] && base >= owner.state().sites.at(site).first_versions[p];
          if (base >= 0 && sends) Contribute(owner, site, p, base);
        }
      }
    }
    for (const core::SiteId& site : sites) trained[site] = t;
  }

  core::FragmentSchedule schedule;
  RulesForTest lead;
  RulesForTest follower;
  std::map<core::SiteId, core::Step> trained;
};

class TwoSitesTest : public ShardsTest {
 protected:
  TwoSitesTest() : ShardsTest(2) {}
};

TEST_F(ShardsTest, ASiteIsRefusedForAMomentUntilShardZeroHasToldOfItsStay) {
  lead.Join({.site = "a", .session = SessionOf("a"), .held = {}}, 0);
  const auto early = JoinFollower("a");
  EXPECT_FALSE(early.accepted);
  EXPECT_GT(early.retry_after_ms, 0);
  Tell();
  EXPECT_TRUE(JoinFollower("a").accepted);
  // An earlier stay of the same session is none.
  EXPECT_FALSE(follower.Join({.site = "a", .session = SessionOf("a"), .held = {}, .stay = 0}, 0).accepted);
}

TEST_F(ShardsTest, NameThatShardZeroHasGivenUpIsForgottenByTheOthers) {
  ArriveAtBoth("a");
  core::Membership membership = lead.membership();
  membership.sites["b"] = {.session = "b-1", .stay = 1, .reason = "left", .first_versions = {}};
  follower.Follow(membership, 0);
  EXPECT_TRUE(follower.state().sites.contains("b"));
  const Actions actions = follower.Follow(lead.membership(), 0);
  ASSERT_THAT(ActionsOf<Forgotten>(actions), SizeIs(1));
  EXPECT_FALSE(follower.state().sites.contains("b"));
  EXPECT_TRUE(follower.state().sites.contains("a"));
}

TEST_F(ShardsTest, NobodyEntersBeforeEveryShardHasSaidThatItHasTheInitialParameters) {
  lead.Join({.site = "a", .session = SessionOf("a"), .held = {}}, 0);
  lead.Seeded();
  EXPECT_THAT(lead.Ready("a", SessionOf("a")), IsEmpty());
  EXPECT_EQ(lead.Reason(), "waiting for shard 1");
  lead.HeardOfShard(1, {.seeded = false, .versions = {0, 0, 0, 0}, .stranded = ""});
  EXPECT_EQ(lead.Reason(), "waiting for the initial parameters of shard 1");
  EXPECT_EQ(lead.membership().seeder, "a");
  const Actions actions = lead.HeardOfShard(1, {.seeded = true, .versions = {0, 0, 0, 0}, .stranded = ""});
  EXPECT_THAT(ActionsOf<Enter>(actions), SizeIs(1));
  EXPECT_EQ(lead.membership().seeder, "");
}

TEST_F(ShardsTest, SeederIsAskedByAFollowerThatLearnsOfItAndWheneverItComesBack) {
  lead.Join({.site = "a", .session = SessionOf("a"), .held = {}}, 0);
  const Actions told = Tell();
  ASSERT_THAT(ActionsOf<RequestSeed>(told), SizeIs(1));
  EXPECT_EQ(ActionsOf<RequestSeed>(told)[0].site, "a");
  EXPECT_THAT(ActionsOf<RequestSeed>(Tell()), IsEmpty()) << "no news";
  EXPECT_THAT(ActionsOf<RequestSeed>(JoinFollower("a").actions), SizeIs(1));
  RulesForTest again(RulesOf(1, 1), follower.state(), 0, /*seeder=*/"a");  // shard 0 is away
  const JoinRequest request{.site = "a", .session = SessionOf("a"), .held = {}, .stay = StayOf("a")};
  EXPECT_THAT(ActionsOf<RequestSeed>(again.Join(request, 0).actions), SizeIs(1));
  again.Seeded();
  EXPECT_THAT(ActionsOf<RequestSeed>(again.Join(request, 0).actions), IsEmpty());
}

TEST_F(ShardsTest, SeederThatJoinsAnewIsAskedAgain) {
  lead.Join({.site = "a", .session = SessionOf("a"), .held = {}}, 0);
  Tell();
  lead.Tick(kLeaseMs);
  Tell();
  lead.Join({.site = "a", .session = SessionOf("a"), .held = {}}, kLeaseMs);
  EXPECT_THAT(ActionsOf<RequestSeed>(Tell()), SizeIs(1));
  // Also where it left and came back between two updates.
  lead.Tick(2 * kLeaseMs);
  lead.Join({.site = "a", .session = SessionOf("a"), .held = {}}, 2 * kLeaseMs);
  EXPECT_THAT(ActionsOf<RequestSeed>(Tell()), SizeIs(1));
}

TEST_F(TwoSitesTest, SeederOfTheLifeBeforeIsAskedAgainAndNoOther) {
  lead.Join({.site = "b", .session = SessionOf("b"), .held = {}}, 0);
  lead.Join({.site = "a", .session = SessionOf("a"), .held = {}}, 0);
  RulesForTest again(RulesOf(0, 2), lead.state(), 0, /*seeder=*/"b");
  EXPECT_EQ(again.membership().seeder, "b");
  EXPECT_TRUE(again.AnySiteIn());
  EXPECT_THAT(ActionsOf<RequestSeed>(again.Join({.site = "a", .session = SessionOf("a"), .held = {}}, 0).actions),
              IsEmpty());
  EXPECT_THAT(ActionsOf<RequestSeed>(again.Join({.site = "b", .session = SessionOf("b"), .held = {}}, 0).actions),
              SizeIs(1));
  again.Leave("b", SessionOf("b"), false, "", 0);
  EXPECT_EQ(again.membership().seeder, "a");
  again.Leave("a", SessionOf("a"), false, "", 0);
  EXPECT_FALSE(again.AnySiteIn());
}

TEST_F(ShardsTest, AfterItsRestartShardZeroLetsNobodyEnterBeforeItKnowsWhereTheOthersAre) {
  ArriveAtBoth("a");
  Train({"a"}, 40);
  RulesForTest again(RulesOf(0, 1), lead.state(), 0);
  again.Join({.site = "b", .session = SessionOf("b"), .held = {}}, 0);
  EXPECT_THAT(again.Ready("b", SessionOf("b")), IsEmpty());
  const auto entered = ActionsOf<Enter>(again.HeardOfShard(1, follower.report()));
  ASSERT_THAT(entered, SizeIs(1));
  EXPECT_EQ(entered[0].site, "b");
  EXPECT_EQ(entered[0].entry.step, 40);
}

TEST_F(TwoSitesTest, RoundsOfEveryShardCloseByTheSameRules) {
  ArriveAtBoth("a");
  EXPECT_THAT(ActionsOf<Enter>(ArriveAtBoth("b")), SizeIs(2));
  Contribute(lead, "a", 0, 0);
  Contribute(follower, "a", 1, 0);
  EXPECT_EQ(follower.RoundReason(1), "waiting for b");
  const auto closed = ActionsOf<CloseRound>(Contribute(follower, "b", 1, 0));
  ASSERT_THAT(closed, SizeIs(1));
  EXPECT_THAT(Names(closed[0]), ElementsAre("a", "b"));
  EXPECT_EQ(closed[0].reason, "all 2 active sites have contributed");
  EXPECT_THAT(ActionsOf<CloseRound>(Contribute(lead, "b", 0, 0)), SizeIs(1));
}

TEST_F(ShardsTest, ASiteThatShardZeroDropsIsDroppedAndRoundsCloseWithoutIt) {
  ArriveAtBoth("a");
  ArriveAtBoth("b");
  Train({"a", "b"}, 10);
  Contribute(follower, "a", 1, 0);
  EXPECT_EQ(follower.RoundReason(1), "waiting for b");
  lead.Tick(kLeaseMs - 1);
  lead.Heard("a", SessionOf("a"), {.step = 10}, kLeaseMs - 1);
  lead.Tick(kLeaseMs);
  const Actions actions = Tell();
  const auto dropped = ActionsOf<Dropped>(actions);
  ASSERT_THAT(dropped, SizeIs(1));
  EXPECT_EQ(dropped[0].site, "b");
  EXPECT_THAT(dropped[0].reason, HasSubstr("lease_ms"));
  const auto closed = ActionsOf<CloseRound>(actions);
  ASSERT_THAT(closed, SizeIs(1));
  EXPECT_THAT(Names(closed[0]), ElementsAre("a"));
  EXPECT_FALSE(JoinFollower("b").accepted);
}

TEST_F(ShardsTest, AFollowerEndsNoLeaseOfItsOwn) {
  ArriveAtBoth("a");
  follower.Disconnected("a", SessionOf("a"), 0);
  EXPECT_THAT(follower.Tick(100 * kLeaseMs), IsEmpty());
  EXPECT_EQ(follower.state().sites.at("a").state, core::SiteState::kTraining);
}

TEST_F(ShardsTest, ASiteThatJoinsAnewUnseenIsDroppedAndEntersAnew) {
  ArriveAtBoth("a");
  Train({"a"}, 30);
  // The follower hears nothing of what is between.
  lead.Leave("a", SessionOf("a"), false, "said so", 0);
  lead.Join({.site = "a", .session = SessionOf("a"), .held = {}}, 0);
  lead.Ready("a", SessionOf("a"));
  const Actions actions = Tell();
  EXPECT_THAT(ActionsOf<Dropped>(actions), SizeIs(1));
  const auto entered = ActionsOf<Enter>(actions);
  ASSERT_THAT(entered, SizeIs(1));
  EXPECT_EQ(entered[0].entry.stay, 2);
}

TEST_F(ShardsTest, ASiteThatJoinsAnewHasNoPlaceAtAFollowerUntilItEnters) {
  ArriveAtBoth("a");
  EXPECT_THAT(follower.state().sites.at("a").first_versions, SizeIs(kFragments));
  lead.Leave("a", SessionOf("a"), false, "said so", 0);
  lead.Join({.site = "a", .session = SessionOf("a"), .held = {}}, 0);
  Tell();
  EXPECT_THAT(follower.state().sites.at("a").first_versions, IsEmpty());
}

// Whatever shard 0 knows of the others' rounds: a joiner contributes to none that is decided, and to all that are due
// after it enters.
TEST_F(ShardsTest, AJoinerContributesFirstToWhatIsOpenAtEachShard) {
  for (core::Step t = 0; t < 40; ++t) {
    for (const bool heard : {false, true}) {
      lead = RulesForTest(RulesOf(0, 1), {}, 0);
      follower = RulesForTest(RulesOf(1, 1), {}, 0);
      trained.clear();
      ArriveAtBoth("a");
      Train({"a"}, t);
      lead.Join({.site = "b", .session = SessionOf("b"), .held = {}}, 0);
      if (heard) Tell();
      const auto entered = ActionsOf<Enter>(lead.Ready("b", SessionOf("b")));
      ASSERT_THAT(entered, SizeIs(1));
      const core::Step step = entered[0].entry.step;
      ASSERT_LE(step, t);
      const auto followed = ActionsOf<Enter>(Tell());
      ASSERT_THAT(followed, SizeIs(1));
      for (core::FragmentId p : {1, 3}) {
        ASSERT_EQ(followed[0].entry.first_versions[p], follower.state().versions[p]);
        ASSERT_GT(schedule.SendStep(p, followed[0].entry.first_versions[p]), step);
      }
      // From its own step on it is as any other.
      trained["b"] = step;
      Train({"a", "b"}, t + 2 * kEvery);
      for (core::FragmentId p = 0; p < kFragments; ++p) {
        RulesForTest& owner = p % 2 == 0 ? lead : follower;
        ASSERT_EQ(owner.state().versions[p], schedule.FirstBaseAfter(p, t + 2 * kEvery));
      }
    }
  }
}

TEST_F(ShardsTest, AnAnswerThatWasLostIsGivenAgain) {
  ArriveAtBoth("a");
  const auto entered = ActionsOf<Enter>(JoinFollower("a").actions);
  ASSERT_THAT(entered, SizeIs(1));
  EXPECT_EQ(entered[0].entry.stay, StayOf("a"));
}

// The others' contributions to the open round of fragment 1 never came, and the joiner's first is to the next: no
// site could ever close it.
TEST_F(ShardsTest, WhereNobodyIsLeftToFillARoundOfAFollowerItsSiteJoinsAnewBeforeThatRound) {
  ArriveAtBoth("a");
  Train({"a"}, 9);
  Contribute(lead, "a", 0, 0);  // sent after step 10
  Contribute(lead, "a", 2, 0);  // after step 14; fragment 1, after step 12, did not arrive
  Tell();
  ArriveAtBoth("b");
  ASSERT_EQ(follower.state().sites.at("b").first_versions[1], 1);
  LeaveRun(lead, "a");
  Tell();  // says that b is stranded
  EXPECT_EQ(lead.state().sites.at("b").state, core::SiteState::kGone);
  EXPECT_THAT(lead.state().sites.at("b").reason, HasSubstr("shard 1"));
  const auto entered = ActionsOf<Enter>(ArriveAtBoth("b"));
  ASSERT_THAT(entered, SizeIs(1));
  EXPECT_EQ(entered[0].entry.first_versions[1], 0);
  EXPECT_LT(lead.state().sites.at("b").first_versions[1], 1);
  EXPECT_EQ(follower.report().stranded, "");
}

TEST_F(ShardsTest, APauseHoldsTheRoundsOfEveryShard) {
  ArriveAtBoth("a");
  ASSERT_TRUE(lead.Pause().ok());
  Tell();
  EXPECT_THAT(ActionsOf<CloseRound>(Contribute(follower, "a", 1, 0)), IsEmpty());
  EXPECT_EQ(follower.Reason(), "paused by an operator");
  ASSERT_TRUE(lead.Resume().ok());
  EXPECT_THAT(ActionsOf<CloseRound>(Tell()), SizeIs(1));
}

TEST_F(ShardsTest, AFollowerIsDoneWithTheRun) {
  lead.Handle(SettingsChanged{.versions = {9, 9, 9, 9}, .steps = 1}, 0);
  ArriveAtBoth("a");
  LeaveRun(lead, "a", /*finished=*/true);
  Tell();
  EXPECT_EQ(follower.run_state(), RunState::kDone);
}

TEST_F(ShardsTest, AFollowerThatStartsAgainGoesOnWithoutShardZero) {
  ArriveAtBoth("a");
  RulesForTest again(RulesOf(1, 1), follower.state(), 0);
  EXPECT_TRUE(again.Join({.site = "a", .session = SessionOf("a"), .held = {}, .stay = StayOf("a")}, 0).accepted);
  EXPECT_THAT(ActionsOf<CloseRound>(Contribute(again, "a", 3, 0)), SizeIs(1));
  EXPECT_THAT(again.Follow(lead.membership(), 0), IsEmpty());
}

// As a shard that lost its disk stores it: it follows who is in before it has a model, and so before its journal knows
// how many versions a site has.
TEST(ShardWithoutAModel, StartsFromSitesWhoseVersionsItsJournalCouldNotCheck) {
  core::RoundState stored;
  stored.started = true;
  stored.sites["a"] = {.session = SessionOf("a"), .state = core::SiteState::kTraining, .reason = "", .stay = 1};
  RulesForTest follower(RulesOf(1, 1), stored, 0);
  follower.Tick(1);
  EXPECT_THAT(follower.state().sites.at("a").first_versions, SizeIs(kFragments));
}

}  // namespace
}  // namespace causeway::server
