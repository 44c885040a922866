// Waits of a Site: each has a timeout, after which the same call goes on; and requests are sent again
// when nothing is heard for a while.
#include <gmock/gmock-matchers.h>

#include "tests/core/fake_clock.h"
#include "tests/worker/site/site_for_test.h"

namespace causeway::worker {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;

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
