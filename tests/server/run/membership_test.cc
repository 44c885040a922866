// Who is in the run, and what the coordinator sends each site of it.
#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "core/limits.h"
#include "tests/server/run/direct_coordinator.h"

namespace causeway::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const std::function<void(v1::Join&)> kHoldsVersion0 = [](v1::Join& join) {
  for (int p = 0; p < 2; ++p) join.add_versions(0);
};

class Membership : public testing::Test {
 protected:
  DirectCoordinator run_;
};

TEST_F(Membership, WelcomeTellsTheModelTheStayAndThatNothingWasAdmitted) {
  run_.Join("a");
  run_.Settle();
  const v1::Welcome welcome = run_.peer["a"]->sent().at(0).welcome();
  EXPECT_EQ(welcome.epoch(), run_.journal->identity().epoch);
  EXPECT_EQ(welcome.lineage(), run_.journal->identity().lineage);
  EXPECT_FALSE(welcome.resumed());
  EXPECT_FALSE(welcome.held());
  EXPECT_EQ(welcome.stay(), 1);
  EXPECT_EQ(welcome.generation(), 1u);
  EXPECT_THAT(welcome.last_admitted(), ElementsAre(-1, -1));
  EXPECT_EQ(*transport::FromProto(welcome.manifest()), ManifestForTest());
  EXPECT_EQ(welcome.fragments_size(), 2);
}

TEST_F(Membership, NameThatWasGivenUpForOthersComesBackWithNothingThatCounts) {
  run_.Start();
  run_.Leave("b");
  for (int i = 0; i < core::kMaxSites; ++i) {
    const std::string name = absl::StrCat("x", i);
    run_.Join(name);
    run_.Leave(name);
  }
  run_.Settle();
  EXPECT_THAT(run_.History("forget"), SizeIs(2));
  EXPECT_THAT(run_.coordinator->Status().sites, SizeIs(core::kMaxSites));
  run_.Join("b", [](v1::Join& join) {
    kHoldsVersion0(join);
    for (int p = 0; p < 2; ++p) join.add_admitted(0);
  });
  run_.Settle();
  const v1::Welcome welcome = run_.peer["b"]->sent().at(0).welcome();
  EXPECT_TRUE(welcome.forgotten());
  EXPECT_FALSE(welcome.resumed());
  EXPECT_THAT(welcome.last_admitted(), ElementsAre(-1, -1));
  EXPECT_THAT(run_.coordinator->Status().strangers, IsEmpty()) << "no history is lost";
  EXPECT_EQ(run_.StatusOf("a").state, core::SiteState::kTraining);
}

TEST_F(Membership, WordsOfASiteAreKeptUpToALength) {
  run_.Join("a", [](v1::Join& join) { join.set_software_version(std::string(4 << 20, 'v')); });
  run_.Leave("a", /*finished=*/false, std::string(4 << 20, 'w'));
  run_.Settle();
  EXPECT_EQ(run_.History("join").at(0).size(), std::string("version ").size() + core::kMaxSiteTextBytes);
  EXPECT_EQ(run_.History("drop").at(0).size(), core::kMaxSiteTextBytes);
  EXPECT_EQ(run_.StatusOf("a").reason.size(), core::kMaxSiteTextBytes);
}

TEST_F(Membership, OneSitesWordThatItHasFinishedIsNoEndOfARunWithoutOne) {
  run_.Start();
  run_.Leave("a", /*finished=*/true);
  EXPECT_FALSE(run_.coordinator->Status().finished);
  EXPECT_EQ(run_.StatusOf("a").state, core::SiteState::kGone);
}

// Leases, stalls and rounds go by the monotonic clock: a calendar that is set, either way, is seen in texts alone.
TEST_F(Membership, CalendarThatJumpsEndsNoLeaseAndShowsNoStall) {
  constexpr int64_t kDayMs = 86'400'000;
  run_.Start();
  int64_t now_ms = 0;
  int64_t base = 0;
  for (const int64_t jump_ms : {kDayMs, -3 * kDayMs, kDayMs / 2}) {
    run_.clock.JumpCalendar(jump_ms);
    run_.TickAt(now_ms += 5'000);
    for (const char* site : {"a", "b"}) run_.Report(site, [](v1::Progress& progress) { progress.set_step(1); });
    EXPECT_EQ(run_.MergeRound(0, base).header.version, base + 1);
    ++base;
  }
  EXPECT_THAT(run_.History("drop"), IsEmpty());
  EXPECT_THAT(run_.History("stall"), IsEmpty());
  for (const char* site : {"a", "b"}) EXPECT_EQ(run_.StatusOf(site).state, core::SiteState::kTraining);
  EXPECT_GT(run_.coordinator->Status().unix_ms, -2 * kDayMs);
}

}  // namespace
}  // namespace causeway::server
