#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/core/fake_clock.h"
#include "tests/worker/site/site_for_test.h"
#include "worker/site/site.h"
#include "worker/site/site_state.h"
#include "worker/site/site_transfers.h"

namespace causeway::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Say = StepWatch::Say;
using std::chrono::milliseconds;

class QuorumSiteTest : public SiteTest {
 protected:
  QuorumSiteTest() : SiteTest(core::SyncMode::kQuorum) {}

  // Steps in peace until `done`: in quorum mode nothing tells the step loop that an update has come.
  core::Step StepUntil(core::Step t, const std::function<bool()>& done) {
    while (!done()) EXPECT_TRUE(site_->AfterStep(++t).ok());
    return t;
  }

  static transport::DownloadHeader Merged(core::Version version, std::vector<core::SiteId> sites,
                                          std::vector<core::Version> bases) {
    return {.version = version,
            .outer = {1, 0},
            .merged = std::move(sites),
            .merged_bases = std::move(bases),
            .sites = {"eu", "us"}};
  }
};

TEST_F(QuorumSiteTest, UpdateThatMergedItsContributionIsMixedAsSoonAsItIsHere) {
  ASSERT_TRUE(FirstJoin(1, 0, 0, 0).ok());
  transport::DownloadRequest update = link_.NextDownload();  // asked for before anything is sent
  value_[0] = 0.5f;
  ASSERT_EQ(*site_->AfterStep(2), 2);
  link_.NextUpload().done(absl::OkStatus());
  ASSERT_EQ(*site_->AfterStep(3), 3);  // τ is over, and the site does not wait
  EXPECT_THAT(value_, ElementsAre(0.5f));
  Answer(update, Merged(1, {"eu"}, {0}), {0.5f}, DigestOf(0.5f));
  value_[0] = 0.25f;  // trained on
  StepUntil(3, [&] { return value_[0] != 0.25f; });
  EXPECT_THAT(value_, ElementsAre(0.5f));  // α = 0: W
}

TEST_F(QuorumSiteTest, UpdateWithoutItsContributionMovesItAndTheContributionStaysUnresolved) {
  ASSERT_TRUE(FirstJoin(1, 0, 0, 0).ok());
  transport::DownloadRequest update = link_.NextDownload();
  value_[0] = 0.5f;  // Δ = 0.5
  ASSERT_TRUE(site_->AfterStep(2).ok());
  const transport::UploadRequest upload = link_.NextUpload();
  Answer(update, Merged(1, {"us"}, {0}), {0.25f}, DigestOf(0.75f));
  core::Step t = StepUntil(2, [&] { return value_[0] != 0.5f; });
  EXPECT_THAT(value_, ElementsAre(0.25f));  // Δ is 0.5 as before
  // A SEND that is due now is skipped: its steps are in the next one.
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(site_->AfterStep(++t).ok());
  EXPECT_EQ(link_.num_uploads(), 0u);
  // The contribution came late, and version 2 has it.
  upload.done(absl::OkStatus());
  transport::DownloadRequest second = link_.NextDownload();
  EXPECT_EQ(second.version, 1);
  Answer(second, Merged(2, {"eu"}, {0}), {0.5f}, DigestOf(0.25f));
  t = StepUntil(t, [&] { return link_.num_uploads() > 0; });
  const transport::UploadRequest next = link_.NextUpload();
  EXPECT_EQ(next.base, 2);
  EXPECT_GE(next.steps, 4);  // since the one that was merged, also those of the skipped SENDs
  EXPECT_LT(next.steps, t);
}

TEST_F(QuorumSiteTest, TheRunsTokensAreThoseThatWereMergedAndItsOwnSinceThen) {
  ASSERT_TRUE(FirstJoin(1, 0, 0, 0).ok());
  transport::DownloadRequest update = link_.NextDownload();
  int64_t tokens = 0;
  const auto train = [&](core::Step t) {
    tokens += 10;
    site_->ReportWith([&](SiteReport& report) { report.Trained({.step = t, .tokens = tokens}); });
    ASSERT_TRUE(site_->AfterStep(t).ok());
  };
  train(2);
  EXPECT_EQ(site_->GetProgress().run_tokens, 10);
  link_.NextUpload().done(absl::OkStatus());
  train(3);
  EXPECT_EQ(site_->GetProgress().run_tokens, 20);
  transport::DownloadHeader header = Merged(1, {"eu", "us"}, {0, 0});
  header.run_tokens = 75;  // 10 of them its own
  Answer(update, header, {0.5f}, DigestOf(0.5f));
  core::Step t = StepUntil(3, [&] { return site_->CompletedRounds() > 0; });
  EXPECT_EQ(site_->GetProgress().run_tokens, 75 + 10);
  train(++t);
  EXPECT_EQ(site_->GetProgress().run_tokens, 75 + 20);
}

TEST_F(QuorumSiteTest, UpdatesThatPileUpAreAppliedInOrderOneAtAStep) {
  ASSERT_TRUE(FirstJoin(1, 0, 0, 0).ok());
  transport::DownloadRequest first = link_.NextDownload();
  Answer(first, Merged(1, {"us"}, {0}), {0.25f}, DigestOf(0.75f));
  // The site requests the second when the first is in θ.
  site_->FinishTasks();
  EXPECT_EQ(link_.num_downloads(), 0u);
  EXPECT_THAT(value_, ElementsAre(1));
  core::Step t = StepUntil(0, [&] { return value_[0] != 1; });
  EXPECT_THAT(value_, ElementsAre(0.75f));
  transport::DownloadRequest second = link_.NextDownload();
  EXPECT_EQ(second.version, 1);
  Answer(second, Merged(2, {"us"}, {1}), {0.5f}, DigestOf(0.25f));
  site_->FinishTasks();
  EXPECT_THAT(value_, ElementsAre(0.75f));  // θ moves at the end of a step alone
  StepUntil(t, [&] { return value_[0] != 0.75f; });
  EXPECT_THAT(value_, ElementsAre(0.25f));
}

TEST_F(QuorumSiteTest, RefusedContributionStaysWholeAndTheNextOneCarriesIt) {
  ASSERT_TRUE(FirstJoin(1, 0, 0, 0).ok());
  value_[0] = 0.5f;
  ASSERT_TRUE(site_->AfterStep(2).ok());
  link_.NextUpload().done(absl::FailedPreconditionError("too old"));
  value_[0] = 0.25f;
  StepUntil(2, [&] { return link_.num_uploads() > 0; });
  EXPECT_EQ(*link_.NextUpload().chunks, SentChunks({0.75f}));
}

TEST_F(QuorumSiteTest, AtTheEndItWaitsForItsContributionAlone) {
  ASSERT_TRUE(FirstJoin(1, 0, 0, 0).ok());
  transport::DownloadRequest update = link_.NextDownload();
  ASSERT_TRUE(site_->AfterStep(2).ok());
  link_.NextUpload().done(absl::OkStatus());
  auto completed = std::async(std::launch::async, [this] { return site_->CompleteRounds(); });
  Answer(update, Merged(1, {"us"}, {0}), {0.25f}, DigestOf(0.75f));
  transport::DownloadRequest second = link_.NextDownload();
  Answer(second, Merged(2, {"eu"}, {0}), {0.5f}, DigestOf(0.25f));
  EXPECT_TRUE(completed.get().ok());
  EXPECT_TRUE(link_.progress().completing);
  EXPECT_THAT(value_, ElementsAre(1));  // nothing mixes in any more
}

TEST_F(QuorumSiteTest, AtTheEndItWaitsForNoRoundThatHasNothingOfIt) {
  ASSERT_TRUE(FirstJoin(1, 0, 0, 0).ok());
  value_[0] = 0.5f;
  ASSERT_TRUE(site_->AfterStep(2).ok());
  link_.NextUpload().done(absl::FailedPreconditionError("too old"));
  EXPECT_TRUE(site_->CompleteRounds().ok());
}

std::string Written(const std::vector<std::string>& texts) {
  const std::vector<core::Bytes> chunks(texts.begin(), texts.end());
  std::string bytes;
  const absl::Status status = WriteChunks(chunks, [&](std::span<const std::byte> more) {
    bytes.append(reinterpret_cast<const char*>(more.data()), more.size());
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
  return bytes;
}

absl::StatusOr<Chunks> Read(const std::string& bytes) {
  return ReadChunks("there", std::ssize(bytes), [&](int64_t at, std::span<std::byte> out) {
    std::ranges::copy(std::as_bytes(std::span(bytes)).subspan(at, out.size()), out.begin());
    return absl::OkStatus();
  });
}

TEST(ChunkFraming, ChunksComeBackAsTheyWere) {
  for (const std::vector<std::string>& chunks :
       {std::vector<std::string>{}, {""}, {"one", std::string(3, 0), "", std::string(300, 'x')}}) {
    const auto read = Read(Written(chunks));
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_TRUE(std::ranges::equal(**read, chunks));
  }
}

TEST(ChunkFraming, LengthIsEightBytesLittleEndian) {
  EXPECT_EQ(Written({"one"}), std::string("\x03\0\0\0\0\0\0\0one", 11));
}

TEST(ChunkFraming, BytesThatEndInAChunkAreDataLoss) {
  const std::string whole = Written({"one", "three"});
  for (const size_t size : {1, 7, 10, 12, 23}) {
    const auto read = Read(whole.substr(0, size));
    EXPECT_EQ(read.status().code(), absl::StatusCode::kDataLoss) << size;
    EXPECT_THAT(std::string(read.status().message()), HasSubstr("there")) << size;
  }
  EXPECT_EQ(Read(whole.substr(0, 23)).status().message(), "there: expected a chunk of 5 bytes, got 4");
  EXPECT_EQ(Read(std::string(8, '\xff')).status().code(), absl::StatusCode::kDataLoss);
}

TEST(ChunkFraming, FailureToWriteOrReadIsReturned) {
  const absl::Status full = absl::ResourceExhaustedError("full");
  EXPECT_EQ(WriteChunks({std::string("one")}, [&](std::span<const std::byte>) { return full; }), full);
  EXPECT_EQ(ReadChunks("there", 9, [&](int64_t, std::span<std::byte>) { return full; }).status(), full);
}

constexpr int64_t kTimeoutMs = 3000;

class StepWatchTest : public ::testing::Test {
 protected:
  void Step() { const InSite inside(watch_, /*steps=*/true); }
  void Join() { const InSite inside(watch_, /*steps=*/false); }
  Say LookAfter(int64_t ms) {
    clock_.Advance(ms);
    return watch_.Look(ranks_);
  }

  core::FakeClock clock_;
  StepWatch watch_{kTimeoutMs / 1000.0, clock_};
  core::RankProgress ranks_;
};

TEST_F(StepWatchTest, SaysOnceThatTrainingStandsStillAndThenNothingUntilTheNextStep) {
  Join();
  Step();
  EXPECT_EQ(LookAfter(kTimeoutMs), Say::kGoesOn);
  EXPECT_EQ(LookAfter(1), Say::kStandsStill);
  EXPECT_THAT(ranks_.standing_still, HasSubstr("no inner step for 3 s"));
  EXPECT_EQ(LookAfter(1000), Say::kNothing);
  Step();
  EXPECT_EQ(LookAfter(0), Say::kGoesOn);
  EXPECT_EQ(LookAfter(kTimeoutMs + 1), Say::kStandsStill);
}

TEST_F(StepWatchTest, KnownWaitsAndCallsOfTheSiteMayTakeAsLongAsTheyDo) {
  EXPECT_EQ(LookAfter(100 * kTimeoutMs), Say::kGoesOn);  // before it has joined
  Join();
  Step();
  watch_.Waits("evaluation");
  EXPECT_EQ(LookAfter(100 * kTimeoutMs), Say::kGoesOn);
  watch_.Waits("");
  EXPECT_EQ(LookAfter(kTimeoutMs), Say::kGoesOn);
  const InSite paused(watch_, /*steps=*/true);
  EXPECT_EQ(LookAfter(100 * kTimeoutMs), Say::kGoesOn);
}

TEST_F(StepWatchTest, TheFirstStepMayTakeTenTimesAsLong) {
  Join();
  EXPECT_EQ(LookAfter(10 * kTimeoutMs), Say::kGoesOn);
  EXPECT_EQ(LookAfter(1), Say::kStandsStill);
}

TEST_F(StepWatchTest, WhoSeesMoreIsBelievedAtOnce) {
  Step();
  watch_.HasRanks({.ranks = 8, .standing_still = "rank 3 of 8 (host) ended"});
  EXPECT_EQ(LookAfter(0), Say::kStandsStill);
  EXPECT_EQ(ranks_.standing_still, "rank 3 of 8 (host) ended");
  EXPECT_EQ(ranks_.ranks, 8);
}

TEST(SyncDelay, TakesTheLongestWhileNothingIsMeasured) {
  SyncDelay delay(/*sync_every=*/20, /*num_fragments=*/1);
  EXPECT_EQ(delay.Choose().delay, 19);
  delay.Stepped(0.1);
  EXPECT_EQ(delay.Choose().delay, 19);
  EXPECT_THAT(delay.Choose().reason, HasSubstr("nothing is measured yet"));
}

TEST(SyncDelay, CoversTheLongestOfTheLastLatenciesWithAMargin) {
  SyncDelay delay(100, 1);
  delay.Stepped(0.1);
  delay.Arrived(1.0, 0);
  EXPECT_EQ(delay.Choose().delay, 12);  // 11 steps of 100 ms cover 1.1 s
  delay.Arrived(0.5, 0);
  delay.Arrived(0.5, 0);
  EXPECT_EQ(delay.Choose().delay, 12);
  delay.Arrived(0.5, 0);
  EXPECT_EQ(delay.Choose().delay, 7);
  delay.Arrived(3.0, 0);  // a link that got slower is followed at once
  EXPECT_EQ(delay.Choose().delay, 34);
  EXPECT_EQ(delay.Choose().reason, "updates take 3000 ms, steps 100.0 ms");
}

TEST(SyncDelay, WhatDelayedOneFragmentCountsForAllOfThemForThreeRounds) {
  SyncDelay delay(100, /*num_fragments=*/2);
  delay.Stepped(0.1);
  delay.Arrived(2.0, 0);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(delay.Choose().delay, 23);
    delay.Arrived(1.0, 0);
  }
  delay.Arrived(1.0, 0);
  EXPECT_EQ(delay.Choose().delay, 12);
}

TEST(SyncDelay, WaitsForOthersCountForThreeTimesTheTransferAtMost) {
  SyncDelay delay(100, 1);
  delay.Stepped(0.1);
  delay.Arrived(1.0, /*waited_s=*/0.4);
  EXPECT_EQ(delay.Choose().delay, 12);
  SyncDelay ahead(100, 1);
  ahead.Stepped(0.1);
  ahead.Arrived(6.0, /*waited_s=*/5.5);
  EXPECT_EQ(ahead.Choose().delay, 23);  // half a second of transfer, and three times as much of waiting
}

// Two sites of which one computes half as fast: the fast one waits for it whatever its delay.
TEST(SyncDelay, DoesNotGrowWithTheHeadStartThatItGives) {
  constexpr double kTransferS = 0.3, kStepS = 0.1;
  SyncDelay delay(100, 1);
  delay.Stepped(kStepS);
  double ahead_s = 0;
  for (int round = 0; round < 50; ++round) {
    const core::Step chosen = delay.Choose().delay;
    ahead_s = std::min(ahead_s + 10, static_cast<double>(chosen) * kStepS);  // it runs ahead until it has to wait
    delay.Arrived(kTransferS + ahead_s, ahead_s);
  }
  EXPECT_LE(delay.Choose().delay, 15);
}

TEST(SyncDelay, IsNeverBelowAStepNorBeyondTheNextSend) {
  SyncDelay delay(4, 1);
  delay.Stepped(10);
  delay.Arrived(1e-6, 0);
  EXPECT_EQ(delay.Choose().delay, 2);
  delay.Arrived(1000, 0);
  EXPECT_EQ(delay.Choose().delay, 3);
  SyncDelay every_step(1, 1);
  every_step.Stepped(1);
  every_step.Arrived(1, 0);
  EXPECT_EQ(every_step.Choose().delay, 0);
}

TEST(SyncDelay, FollowsTheStepTime) {
  SyncDelay delay(100, 1);
  delay.Arrived(1.0, 0);
  delay.Stepped(0.1);
  for (int i = 0; i < 200; ++i) delay.Stepped(0.05);
  EXPECT_EQ(delay.Choose().delay, 23);  // 22 and a little: the first step has not quite been forgotten
}

// Waits of a Site: each has a timeout, after which the same call goes on; and requests are sent again
// when nothing is heard for a while.

constexpr auto kSoon = milliseconds(5);

class SiteTimeoutTest : public SiteTest {
 protected:
  SiteTimeoutTest() {
    config_.membership.lease_ms = 80;  // a beat every 20 ms
    Make(nullptr, clock_);
  }

  ~SiteTimeoutTest() override { site_.reset(); }  // before its clock

  static bool IsTimeout(const absl::Status& status) { return status.code() == absl::StatusCode::kDeadlineExceeded; }

  SiteFacts Facts() {
    SiteFacts facts;
    EXPECT_TRUE(site_->Checkpoint([&](const SiteCheckpoint& checkpoint) { facts = checkpoint.facts; }));
    return facts;
  }

  // Waits for `count` more beats of the site's heart.
  void Beats(int count) { link_.AwaitReports(link_.num_reports() + count); }

  core::FakeClock clock_;
};

using JoinedTimeoutTest = Joined<SiteTimeoutTest>;

// ---- Timeouts ----

TEST_F(SiteTimeoutTest, JoinTimesOutAtEachOfItsWaitsAndGoesOnWhenCalledAgain) {
  EXPECT_TRUE(IsTimeout(site_->Join(kSoon).status()));  // no welcome
  Welcome();
  EXPECT_TRUE(IsTimeout(site_->Join(kSoon).status()));  // no anchor
  transport::DownloadRequest anchor = link_.NextDownload();
  EXPECT_TRUE(IsTimeout(site_->Join(kSoon).status()));
  EXPECT_EQ(link_.num_downloads(), 0u);  // asked for once
  Answer(anchor, {.version = 3}, {5, 0}, DigestOf(5));
  link_.AwaitReady(1);
  EXPECT_TRUE(IsTimeout(site_->Join(kSoon).status()));  // no place
  Beats(3);
  EXPECT_EQ(link_.num_ready(), 1);  // while no time has passed
  EXPECT_THAT(value_, ElementsAre(1));
  link_.listener().OnEntry({.step = 8, .versions = {3}, .first_versions = {3}, .sites = {"eu", "us"}});
  EXPECT_EQ(*site_->Join(), 8);
  EXPECT_THAT(value_, ElementsAre(5));
  EXPECT_EQ(link_.starts(), 1);
  EXPECT_EQ(site_->stays(), 1);
}

TEST_F(JoinedTimeoutTest, AWaitForAnUpdateTimesOutAndGoesOnWithoutCountingTheStepTwice) {
  site_->ReportWith([](SiteReport& whole) { whole.Trained({.step = 1, .tokens = 10}); });
  ASSERT_TRUE(site_->AfterStep(1).ok());
  site_->ReportWith([](SiteReport& whole) { whole.Trained({.step = 2, .tokens = 20}); });
  Send().done(absl::OkStatus());
  site_->ReportWith([](SiteReport& whole) { whole.Trained({.step = 3, .tokens = 30}); });
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(IsTimeout(site_->AfterStep(3, kSoon).status()));
    EXPECT_THAT(value_, ElementsAre(1));
  }
  AnswerUpdate({.version = 1, .merged = {"eu", "us"}}, 0.75f);
  EXPECT_EQ(*site_->AfterStep(3), 3);
  EXPECT_THAT(value_, ElementsAre(0.75f));
  EXPECT_EQ(Facts().trained.steps, 3);
  EXPECT_EQ(Facts().trained.tokens, 30);
  ASSERT_TRUE(site_->AfterStep(4).ok());
  EXPECT_EQ(link_.NextUpload().steps, 2);  // 3 and 4: those of the first were merged
  EXPECT_EQ(link_.num_uploads(), 0u);
}

TEST_F(JoinedTimeoutTest, TokensThatAreReportedBetweenTwoCallsForTheSameStepCount) {
  ASSERT_TRUE(site_->AfterStep(2).ok());
  EXPECT_TRUE(IsTimeout(site_->AfterStep(3, kSoon).status()));
  site_->ReportWith([](SiteReport& whole) { whole.Trained({.step = 3, .tokens = 30}); });
  EXPECT_TRUE(IsTimeout(site_->AfterStep(3, kSoon).status()));
  AnswerUpdate({.version = 1, .merged = {"eu"}}, 0.75f);
  EXPECT_EQ(*site_->AfterStep(3), 3);
  EXPECT_EQ(Facts().trained.tokens, 30);
  EXPECT_EQ(Facts().trained.steps, 2);
}

// The pause ends between two calls, so that nothing is left to wait for when the second comes.
TEST_F(JoinedTimeoutTest, APauseTimesOutAndTheStepThatSentInItSendsOnce) {
  link_.listener().OnHold(true);
  EXPECT_TRUE(IsTimeout(site_->AfterStep(2, kSoon).status()));
  EXPECT_TRUE(IsTimeout(site_->AfterStep(2, kSoon).status()));
  link_.listener().OnHold(false);
  EXPECT_EQ(*site_->AfterStep(2), 2);
  EXPECT_EQ(link_.NextUpload().steps, 1);
  EXPECT_EQ(Facts().trained.steps, 1);
  EXPECT_EQ(link_.num_uploads(), 0u);
}

TEST_F(JoinedTimeoutTest, ASiteThatJoinsAnewTimesOutAndReturnsTheStepOfItsNewPlace) {
  value_[0] = 0.5f;
  link_.NextDownload();  // never answered
  Welcome({-1});
  EXPECT_TRUE(IsTimeout(site_->AfterStep(1, kSoon).status()));
  EXPECT_TRUE(IsTimeout(site_->AfterStep(1, kSoon).status()));
  link_.AwaitReady(2);
  // It has all that this place needs: it enters while no call waits.
  link_.listener().OnEntry({.step = 2, .versions = {0}, .first_versions = {1}, .sites = {"eu", "us"}});
  EXPECT_EQ(*site_->AfterStep(1), 2);
  EXPECT_THAT(value_, ElementsAre(0.5f));
  EXPECT_EQ(site_->stays(), 2);
  EXPECT_EQ(Facts().trained.steps, 1);
  EXPECT_EQ(Facts().step, 2);
  EXPECT_EQ(link_.num_uploads(), 0u);
}

TEST_F(JoinedTimeoutTest, ASiteThatEnteredWhileNoCallWaitedBeginsItsNextStayWhenItWaitsAgain) {
  link_.NextDownload();
  Welcome({-1});
  EXPECT_TRUE(IsTimeout(site_->AfterStep(1, kSoon).status()));
  Enter({.ready = 2, .step = 2, .version = 0, .first = 1});
  ASSERT_EQ(*site_->AfterStep(1), 2);
  link_.NextDownload();
  // Dropped again while it computes: nothing of the next stay begins before its step is done.
  Welcome({-1});
  EXPECT_EQ(link_.num_downloads(), 0u);
  EXPECT_TRUE(IsTimeout(site_->AfterStep(3, kSoon).status()));
  EXPECT_EQ(link_.NextDownload().version, 0);
}

TEST_F(JoinedTimeoutTest, CompletingTheRoundsTimesOutAndGoesOn) {
  Send().done(absl::OkStatus());
  EXPECT_TRUE(IsTimeout(site_->CompleteRounds(kSoon)));
  EXPECT_TRUE(IsTimeout(site_->CompleteRounds(kSoon)));
  AnswerUpdate({.version = 1, .merged = {"eu"}}, 0.75f);
  EXPECT_TRUE(site_->CompleteRounds().ok());
  EXPECT_TRUE(site_->CompleteRounds(kSoon).ok());  // still complete
  EXPECT_THAT(link_.listener().GetStanding().versions, ElementsAre(1));
  EXPECT_THAT(value_, ElementsAre(1));
}

TEST_F(SiteTimeoutTest, StopEndsACallThatFollowsATimeout) {
  EXPECT_TRUE(IsTimeout(site_->Join(kSoon).status()));
  site_->RequestStop();
  EXPECT_EQ(site_->Join().status().code(), absl::StatusCode::kCancelled);
}

// ---- Silence ----

TEST_F(SiteTimeoutTest, AJoinerThatHearsNothingAsksForTheAnchorAgainAndSaysAgainThatItIsReady) {
  auto joined = JoinAside();
  Welcome();
  transport::DownloadRequest silent = link_.NextDownload();
  clock_.Advance(6000);
  transport::DownloadRequest again = link_.NextDownload();
  EXPECT_EQ(again.kind, transport::DownloadKind::kAnchor);
  Answer(silent, {.version = 2}, {4, 0}, DigestOf(4));  // late: the second counts
  Answer(again, {.version = 3}, {5, 0}, DigestOf(5));
  link_.AwaitReady(1);
  clock_.Advance(6000);
  Enter({.ready = 2, .step = 8, .version = 3});
  EXPECT_EQ(*joined.get(), 8);
  EXPECT_THAT(value_, ElementsAre(5));
}

TEST_F(SiteTimeoutTest, AnAnchorThatIsOnItsWayIsNotAskedForAgain) {
  auto joined = JoinAside();
  Welcome();
  transport::DownloadRequest slow = link_.NextDownload();
  slow.on_header({.version = 3, .num_chunks = 2});
  clock_.Advance(6000);
  Beats(3);
  EXPECT_EQ(link_.num_downloads(), 0u);
  int index = 0;
  for (std::string& chunk : ChunksOf({5, 0})) slow.on_chunk(index++, std::move(chunk));
  slow.done(absl::OkStatus(), DigestOf(5));
  Enter({.ready = 1, .step = 8, .version = 3});
  EXPECT_EQ(*joined.get(), 8);
}

}  // namespace
}  // namespace causeway::worker
