#include <gmock/gmock-matchers.h>

#include "tests/worker/site/site_for_test.h"

namespace causeway::worker {
namespace {

using ::testing::ElementsAre;

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

}  // namespace
}  // namespace causeway::worker
