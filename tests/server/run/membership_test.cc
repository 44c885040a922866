// Who is in the run, and what the coordinator sends each site of it.
#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "core/limits.h"
#include "tests/server/run/direct_coordinator.h"

namespace causeway::server {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

const std::function<void(v1::Join&)> kHoldsVersion0 = [](v1::Join& join) {
  for (int p = 0; p < 2; ++p) join.add_versions(0);
};

class Membership : public testing::Test {
 protected:
  std::string RefusalOf(const std::string& site, const std::function<void(v1::Join&)>& change) {
    RecordedPeer& peer = run_.Join(site, change);
    run_.Settle();
    EXPECT_TRUE(peer.closed());
    return peer.last().refused().reason();
  }

  DirectCoordinator run_;
};

TEST_F(Membership, JoinThatSaysTooLittleIsRefusedWithWhatWasExpected) {
  EXPECT_THAT(
      RefusalOf("a", [](v1::Join& join) { join.mutable_context()->set_site(".a"); }),
      HasSubstr("site name: expected 1 to 64 letters, digits, '.', '_' or '-', not starting with '.', got '.a'"));
  EXPECT_EQ(RefusalOf("a", [](v1::Join& join) { join.mutable_context()->clear_session(); }),
            "session: expected a session id, got none");
  EXPECT_EQ(RefusalOf("a", [](v1::Join& join) { join.clear_codecs(); }),
            "the run uses codec int4, which the site does not know");
  EXPECT_THAT(RefusalOf("a", [](v1::Join& join) { join.mutable_manifest()->mutable_tensors(0)->set_kind(99); }),
              HasSubstr("99"));
  EXPECT_THAT(run_.coordinator->Status().sites, IsEmpty());
  EXPECT_FALSE(run_.coordinator->Describe().has_manifest()) << "who is refused brings no model";
}

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

TEST_F(Membership, FirstSiteIsAskedForTheSeedAndTheOthersHearWhyTheyWait) {
  run_.Join("b");
  run_.Join("a");
  run_.Settle();
  EXPECT_THAT(run_.peer["b"]->kinds(), ElementsAre("welcome", "seed_request", "notice"));
  EXPECT_THAT(run_.peer["a"]->kinds(), ElementsAre("welcome", "notice"));
  run_.Leave("b");
  run_.Settle();
  EXPECT_THAT(run_.peer["a"]->kinds(), Contains("seed_request")) << "who is left takes its place";
}

TEST_F(Membership, EntryOfTheStartNamesAllSitesAndWhereTheyBegin) {
  run_.Start();
  for (const char* site : {"a", "b"}) {
    const v1::Entry entry = run_.peer[site]->last().entry();
    EXPECT_THAT(entry.sites(), ElementsAre("a", "b"));
    EXPECT_THAT(entry.versions(), ElementsAre(0, 0));
    EXPECT_THAT(entry.first_versions(), ElementsAre(0, 0));
    EXPECT_EQ(entry.step(), 0);
    EXPECT_EQ(entry.stay(), 1);
  }
}

TEST_F(Membership, ReadyCountsOnceAndNotBeforeTheSeed) {
  run_.Join("a");
  run_.Join("b");
  run_.Ready("a");
  run_.Seed("a");
  run_.Ready("b");
  run_.Ready("b");
  run_.Settle();
  EXPECT_EQ(run_.coordinator->Status().reason, "1 of 2 sites are ready (min_sites)");
  run_.Ready("a");
  run_.Settle();
  EXPECT_EQ(run_.coordinator->Status().state, "training");
}

TEST_F(Membership, SecondWorkerOfANameIsRefusedWhileTheFirstOneLivesAndLaterUntilItsLeaseEnds) {
  run_.Start();
  const auto another = [](v1::Join& join) { join.mutable_context()->set_session("a-2"); };
  RecordedPeer& first = *run_.peer["a"];
  EXPECT_EQ(RefusalOf("a", another), "site a is in the run already and alive; give this one another name");
  EXPECT_FALSE(first.closed());
  run_.coordinator->Handle(input::Disconnected{&first});
  run_.TickAt(4'000);
  RecordedPeer& waits = run_.Join("a", another);
  run_.Settle();
  EXPECT_EQ(waits.last().refused().retry_after_ms(), 6'000);
  run_.Report("b", [](v1::Progress& progress) { progress.set_step(1); });
  run_.TickAt(10'000);
  run_.Join("a", another);
  run_.Settle();
  EXPECT_EQ(run_.peer["a"]->sent().at(0).welcome().stay(), 2);
}

TEST_F(Membership, SiteThatIsBackWithItsAnchorsGoesOnAndKeepsTheChunksThatArrived) {
  run_.Start();
  const v1::UploadHeader header = HeaderOf("a", 0);
  const auto missing = [&] { return run_.BeginUpload(header)->contribution->Missing(); };
  const auto chunks = ChunksOf(run_.map.fragment(0), core::CodecId::kInt4, 1);
  ASSERT_TRUE(run_.BeginUpload(header)->contribution->Add(chunks[0]).ok());
  run_.coordinator->Handle(input::Disconnected{run_.peer["a"]});
  run_.Join("a", kHoldsVersion0);
  run_.Settle();
  const v1::Welcome welcome = run_.peer["a"]->sent().at(0).welcome();
  EXPECT_TRUE(welcome.resumed());
  EXPECT_EQ(welcome.stay(), 1);
  EXPECT_THAT(missing(), ElementsAre(1, 2));
  EXPECT_THAT(run_.History("join"), SizeIs(2)) << "that it is back is no second join";
  run_.Join("a", [](v1::Join& join) {
    kHoldsVersion0(join);
    join.set_from_checkpoint(true);
  });
  EXPECT_THAT(missing(), ElementsAre(0, 1, 2)) << "another process made those chunks";
}

TEST_F(Membership, ChunksOfAnEarlierStayAreNotTakenForTheOneThatBegan) {
  run_.Start();
  v1::UploadHeader header = HeaderOf("a", 0);
  header.mutable_context()->set_stay(1);
  EXPECT_TRUE(run_.BeginUpload(header).ok());
  run_.Join("a");
  run_.Settle();
  ASSERT_EQ(run_.peer["a"]->sent().at(0).welcome().stay(), 2);
  const absl::Status late = run_.BeginUpload(header).status();
  EXPECT_TRUE(absl::IsAborted(late));
  EXPECT_EQ(late.message(), "expected stay 2 of the site, got 1; retry");
  header.mutable_context()->set_stay(2);
  EXPECT_TRUE(run_.BeginUpload(header).ok());
  header.mutable_context()->clear_stay();
  EXPECT_TRUE(run_.BeginUpload(header).ok()) << "a site of before does not say it";
}

TEST_F(Membership, SiteThatIsBackWithoutItsAnchorsEntersAnew) {
  run_.Start();
  RecordedPeer& older = *run_.peer["a"];
  run_.Join("a");
  run_.Settle();
  EXPECT_TRUE(older.closed());
  const v1::Welcome welcome = run_.peer["a"]->sent().at(0).welcome();
  EXPECT_FALSE(welcome.resumed());
  EXPECT_EQ(welcome.stay(), 2);
  EXPECT_THAT(run_.History("drop"), ElementsAre("came back before it had taken its place in the schedule"));
  run_.Ready("a");
  run_.Settle();
  EXPECT_EQ(run_.peer["a"]->last().entry().stay(), 2);
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

TEST_F(Membership, WhatAStreamSaysAfterItsSiteHasLeftIsPassedOver) {
  run_.Start();
  RecordedPeer* const left = run_.peer["a"];
  run_.Leave("a");
  run_.Leave("a", /*finished=*/true);
  run_.Ready("a");
  run_.Report("a", [](v1::Progress& progress) { progress.set_step(9); });
  run_.coordinator->Handle(input::Disconnected{left});
  run_.Settle();
  EXPECT_EQ(run_.StatusOf("a").progress->step, 0);
  EXPECT_FALSE(run_.coordinator->Status().finished);
  EXPECT_EQ(run_.StatusOf("a").state, core::SiteState::kGone);
}

TEST(MembershipOfARunWithAnEnd, IsDoneWhenAFinishedSiteHasLeftAndNoneIsInUntilAnOperatorResumesIt) {
  core::RunConfig config = ConfigForTest();
  config.steps = 1;
  DirectCoordinator run(config);
  run.Start();
  run.Leave("a", /*finished=*/true);
  EXPECT_FALSE(run.coordinator->done());
  EXPECT_TRUE(run.coordinator->Status().finished);
  run.Leave("b");
  EXPECT_TRUE(run.coordinator->done());
  EXPECT_TRUE(run.peer["b"]->closed()) << "its stream has ended by the time that the run is done";
  RecordedPeer& late = run.Join("c");
  run.Settle();
  EXPECT_EQ(late.last().refused().reason(), "the run is done");
  ASSERT_TRUE(run.coordinator->Ask(input::ChangeRun{v1::ChangeRunRequest::RESUME}).ok());
  EXPECT_FALSE(run.coordinator->done());
  RecordedPeer& back = run.Join("c");
  run.Settle();
  EXPECT_FALSE(back.closed());
}

TEST_F(Membership, OneSitesWordThatItHasFinishedIsNoEndOfARunWithoutOne) {
  run_.Start();
  run_.Leave("a", /*finished=*/true);
  EXPECT_FALSE(run_.coordinator->Status().finished);
  EXPECT_EQ(run_.StatusOf("a").state, core::SiteState::kGone);
}

TEST_F(Membership, PauseHoldsAllSitesAndResumeLetsThemGoOn) {
  run_.Start();
  ASSERT_TRUE(run_.coordinator->Ask(input::ChangeRun{v1::ChangeRunRequest::PAUSE}).ok());
  for (const char* site : {"a", "b"}) {
    const auto sent = run_.peer[site]->sent();
    EXPECT_TRUE(sent.at(sent.size() - 2).hold().held());
    EXPECT_EQ(sent.back().notice().reason(), "paused by an operator");
  }
  run_.Join("c");
  run_.Settle();
  EXPECT_TRUE(run_.peer["c"]->sent().at(0).welcome().held());
  EXPECT_FALSE(run_.coordinator->Ask(input::ChangeRun{v1::ChangeRunRequest::PAUSE}).ok());
  ASSERT_TRUE(run_.coordinator->Ask(input::ChangeRun{v1::ChangeRunRequest::RESUME}).ok());
  ASSERT_TRUE(run_.peer["c"]->last().has_hold());
  EXPECT_FALSE(run_.peer["c"]->last().hold().held());
  EXPECT_TRUE(absl::IsInvalidArgument(run_.coordinator->Ask(input::ChangeRun{v1::ChangeRunRequest::UNKNOWN}).status()));
  EXPECT_THAT(run_.History("pause"), ElementsAre("by an operator"));
}

TEST_F(Membership, DrainReachesItsSiteAndAgainWhenThatJoinsAgain) {
  run_.Start();
  EXPECT_TRUE(absl::IsFailedPrecondition(run_.coordinator->Ask(input::Drain{"c"}).status()));
  ASSERT_TRUE(run_.coordinator->Ask(input::Drain{"a"}).ok());
  EXPECT_EQ(run_.peer["a"]->last().drain().reason(), "an operator asked for it");
  EXPECT_THAT(run_.peer["b"]->kinds(), Not(Contains("drain")));
  run_.coordinator->Handle(input::Disconnected{run_.peer["a"]});
  run_.Join("a", kHoldsVersion0);
  run_.Settle();
  EXPECT_THAT(run_.peer["a"]->kinds(), ElementsAre("welcome", "drain")) << "it may not know";
}

TEST_F(Membership, CoordinatorThatStoodStillForThreeLeasesDropsNoSite) {
  run_.Start();
  run_.TickAt(1'000);
  run_.clock.Set(31'000);
  run_.TickAt(31'000);
  for (const char* site : {"a", "b"}) EXPECT_EQ(run_.StatusOf(site).state, core::SiteState::kTraining);
  EXPECT_THAT(run_.History("stall"),
              ElementsAre("this process stood still for 30000 ms; the sites' leases go on from where they were"));
  run_.Report("b", [](v1::Progress& progress) { progress.set_step(1); });
  run_.TickAt(40'000);
  EXPECT_EQ(run_.StatusOf("a").state, core::SiteState::kGone) << "it was silent for 10 s that the coordinator ran";
  EXPECT_EQ(run_.StatusOf("b").state, core::SiteState::kTraining);
  EXPECT_EQ(run_.History("stall").size(), 1u);
}

TEST_F(Membership, StopDrainsAllSitesAndRefusesJoiners) {
  run_.Start();
  ASSERT_TRUE(run_.coordinator->Ask(input::ChangeRun{v1::ChangeRunRequest::STOP}).ok());
  for (const char* site : {"a", "b"}) EXPECT_THAT(run_.peer[site]->kinds(), Contains("drain"));
  EXPECT_THAT(RefusalOf("c", nullptr), HasSubstr("the run is stopped by an operator"));
}

TEST_F(Membership, SiteThatTheLeaseEndsForIsDroppedWithItsStream) {
  run_.Start();
  run_.TickAt(9'000);
  run_.Report("b", [](v1::Progress& progress) { progress.set_step(1); });
  RecordedPeer& silent = *run_.peer["a"];
  run_.TickAt(10'000);
  EXPECT_TRUE(silent.closed());
  EXPECT_THAT(run_.History("drop"), ElementsAre("not heard of for 10000 ms (lease_ms)"));
  EXPECT_TRUE(run_.StatusOf("a").lost);
  EXPECT_FALSE(run_.peer["b"]->closed());
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
