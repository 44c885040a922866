// Leases, beside those of testdata/leases.txt.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/rounds/rules_for_test.h"

namespace causeway::server {
namespace {

TEST(RunRules, LeaseOfASiteThatDoesNotHearTheCoordinatorIsCountedFromWhenItDid) {
  RulesForTest table = TableOf({"a", "b"});
  for (int64_t now_ms = 100; now_ms <= 1'500; now_ms += 100) {
    table.Heard("a", "a-1", {.step = 1, .unheard_ms = now_ms - 100}, now_ms);  // its last news are of 100
    table.Heard("b", "b-1", {.step = 1, .unheard_ms = 50}, now_ms);
    EXPECT_EQ(ActionsOf<Dropped>(table.Tick(now_ms)).size(), now_ms == 1'100 ? 1 : 0) << now_ms;
  }
  EXPECT_EQ(table.state().sites.at("a").reason, "does not hear the coordinator for 1000 ms (lease_ms)");
  EXPECT_TRUE(IsLost(table.state().sites.at("a")));
}

// Its last news were sent before the coordinator stood still, which it does not see: that time does not count.
TEST(RunRules, TimeInWhichTheCoordinatorStoodStillIsNoneWithoutNewsOfIt) {
  RulesForTest table = TableOf({"a"});
  table.StoodStill(400, 2'400);
  table.Heard("a", "a-1", {.step = 1, .unheard_ms = 2'100}, 2'450);  // of 350
  EXPECT_TRUE(HappensAt<Dropped>(table, 3'350));
}

// Each fragment counts the tokens of what was merged into it.
TEST(RunRules, TokensOfMergedContributionsAddUp) {
  RoundSettings rules = Rules(/*sync_every=*/8, /*num_fragments=*/2);
  rules.sync.mode = core::SyncMode::kQuorum;
  rules.membership.min_quorum = 1;
  RulesForTest table = TableOf({"a", "b"}, rules);
  EXPECT_THAT(table.state().tokens, testing::ElementsAre(0, 0));
  table.Admit("a", 0, {.base = 0, .tokens = 100, .steps = 4}, 1, 100);
  const auto closed = ActionsOf<CloseRound>(table.Admit("b", 0, {.base = 0, .tokens = 30, .steps = 2}, 1, 110));
  ASSERT_EQ(closed.size(), 1);
  EXPECT_EQ(closed.at(0).run_tokens, 130);
  EXPECT_THAT(table.state().tokens, testing::ElementsAre(130, 0));
}

}  // namespace
}  // namespace causeway::server
