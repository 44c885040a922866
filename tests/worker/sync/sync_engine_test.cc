#include <gmock/gmock.h>

#include "tests/worker/sync/engine_for_test.h"

namespace causeway::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(SyncEngineTest, JoinerTakesTheAnchorAndThePlaceItIsGiven) {
  const auto step = FirstJoin(/*anchor=*/5, /*version=*/3, /*step=*/8, /*first=*/3);
  ASSERT_TRUE(step.ok()) << step.status();
  EXPECT_EQ(*step, 8);
  EXPECT_THAT(value_, ElementsAre(5));
  EXPECT_THAT(engine_->sites(), ElementsAre("eu", "us"));
}

TEST_F(SyncEngineTest, SendsAtItsStepAndMixesAfterTheDelay) {
  ASSERT_TRUE(FirstJoin(1, 0, 0, 0).ok());
  ASSERT_EQ(*engine_->AfterStep(1), 1);
  value_[0] = 0.5f;
  ASSERT_EQ(*engine_->AfterStep(2), 2);  // SEND of base 0: H + t_0 = 2
  const transport::UploadRequest upload = link_.NextUpload();
  EXPECT_EQ(upload.base, 0);
  EXPECT_EQ(*upload.chunks, ChunksOf({0.5f}));
  upload.done(absl::OkStatus());
  transport::DownloadRequest update = link_.NextDownload();
  EXPECT_EQ(update.kind, transport::DownloadKind::kUpdate);
  Answer(update, {.version = 1, .outer = {1, 0}, .merged = {"eu", "us"}, .sites = {"eu", "us"}}, {0.25f},
         DigestOf(0.75f));
  value_[0] = 0.375f;
  ASSERT_EQ(*engine_->AfterStep(3), 3);  // APPLY, α = 0
  EXPECT_THAT(value_, ElementsAre(0.75f));
}

TEST_F(SyncEngineTest, WhatIsSentIsTheStepsThatSentHoweverSoonThetaChanges) {
  offload::BusSchedule bus;
  for (const bool defers : {false, true}) {
    if (defers) engine_->DeferCopies(&bus);
    const core::Version base = defers ? 1 : 0;
    if (!defers) {
      ASSERT_TRUE(FirstJoin(1, 0, 0, 0).ok());
    }
    value_[0] = 0.5f;
    ASSERT_TRUE(engine_->AfterStep(2 * (base + 1)).ok());
    bus.BeginUpdate();
    bus.AwaitCopied({0, 1});
    bus.EndUpdate();
    value_[0] = 7;
    const transport::UploadRequest upload = link_.NextUpload();
    EXPECT_EQ(upload.base, base);
    EXPECT_EQ(*upload.chunks, ChunksOf({0.5f}));
    upload.done(absl::OkStatus());
    transport::DownloadRequest update = link_.NextDownload();
    Answer(update, {.version = base + 1, .outer = {1, 0}, .merged = {"eu"}, .sites = {"eu"}}, {0}, DigestOf(1));
    ASSERT_TRUE(engine_->AfterStep(2 * (base + 1) + 1).ok());
  }
}

TEST_F(SyncEngineTest, AutomaticDelayAppliesAsLateAsItMayWhileNothingIsMeasured) {
  config_.sync.sync_every = 4;
  config_.sync.fragment_sync_delay = core::kAutoDelay;
  engine_ = std::make_unique<SyncEngine>(config_, "eu", manifest_, std::vector<std::span<float>>{value_}, &link_);
  ASSERT_TRUE(FirstJoin(1, 0, 0, 0).ok());
  ASSERT_TRUE(engine_->AfterStep(4).ok());
  link_.NextUpload().done(absl::OkStatus());
  transport::DownloadRequest update = link_.NextDownload();
  Answer(update, {.version = 1, .outer = {1, 0}, .merged = {"eu"}, .sites = {"eu"}}, {0.25f}, DigestOf(0.75f));
  for (core::Step t : {5, 6}) {
    ASSERT_TRUE(engine_->AfterStep(t).ok());
    EXPECT_THAT(value_, ElementsAre(1));
  }
  ASSERT_TRUE(engine_->AfterStep(7).ok());
  EXPECT_THAT(value_, ElementsAre(0.75f));
  ASSERT_TRUE(engine_->AfterStep(8).ok());  // the next send has a measured latency to go by
  engine_->Leave(/*finished=*/false, "the test is over");
  const core::FragmentProgress progress = link_.progress().fragments.at(0);
  EXPECT_LE(progress.delay, 3);
  EXPECT_THAT(progress.reason, HasSubstr("updates take"));
}

TEST_F(SyncEngineTest, SiteWhoseAnchorDiffersFromTheCoordinatorsTakesANewPlaceWithTheRightOne) {
  ASSERT_TRUE(FirstJoin(1, 0, 0, 0).ok());
  ASSERT_TRUE(engine_->AfterStep(2).ok());
  link_.NextUpload().done(absl::OkStatus());
  transport::DownloadRequest update = link_.NextDownload();
  Answer(update, {.version = 1, .outer = {1, 0}, .merged = {"eu"}, .sites = {"eu"}}, {0.25f}, DigestOf(9));
  link_.AwaitRejoin();
  EXPECT_THAT(engine_->GetStanding().versions, ElementsAre());
  auto joined = std::async(std::launch::async, [this] { return engine_->AfterStep(3); });
  link_.listener().OnWelcome({.resumed = false, .map = map_, .last_admitted = {0}});
  transport::DownloadRequest anchor = link_.NextDownload();
  EXPECT_EQ(anchor.kind, transport::DownloadKind::kAnchor);
  Answer(anchor, {.version = 1}, {9, 0}, DigestOf(9));
  link_.AwaitReady(2);
  link_.listener().OnEntry({.step = 4, .versions = {1}, .first_versions = {1}, .sites = {"eu"}});
  EXPECT_EQ(*joined.get(), 4);
  EXPECT_THAT(value_, ElementsAre(9));
}

TEST_F(SyncEngineTest, SiteThatIsBehindTheUpdatesThatAreKeptTakesANewPlaceAndKeepsWhatItTrained) {
  ASSERT_TRUE(FirstJoin(1, 0, 0, 0).ok());
  value_[0] = 0.5f;
  ASSERT_TRUE(engine_->AfterStep(1).ok());
  link_.NextDownload().done(absl::NotFoundError("pruned"), 0);
  link_.AwaitRejoin();
  EXPECT_THAT(value_, ElementsAre(0.5f));  // the step loop's, until it waits in Join
  auto joined = std::async(std::launch::async, [this] { return engine_->AfterStep(2); });
  link_.listener().OnWelcome({.resumed = false, .map = map_, .last_admitted = {-1}});
  transport::DownloadRequest anchor = link_.NextDownload();
  Answer(anchor, {.version = 6}, {4, 0}, DigestOf(4));
  link_.AwaitReady(2);
  link_.listener().OnEntry({.step = 12, .versions = {6}, .first_versions = {6}, .sites = {"eu"}});
  EXPECT_EQ(*joined.get(), 12);
  EXPECT_THAT(value_, ElementsAre(3.5f));
}

TEST_F(SyncEngineTest, SiteThatWasDroppedCatchesUpByTheUpdatesItMissedAndKeepsWhatItTrained) {
  ASSERT_TRUE(FirstJoin(1, 0, 0, 0).ok());
  value_[0] = 0.5f;  // trained by 0.5
  ASSERT_TRUE(engine_->AfterStep(2).ok());
  link_.NextUpload();
  const transport::DownloadRequest lost = link_.NextDownload();  // never answered
  auto joined = std::async(std::launch::async, [this] { return engine_->AfterStep(3); });
  link_.listener().OnWelcome({.resumed = false, .map = map_, .last_admitted = {-1}});
  transport::DownloadRequest missed = link_.NextDownload();
  EXPECT_EQ(missed.kind, transport::DownloadKind::kUpdate);
  EXPECT_EQ(missed.version, 0);
  link_.AwaitReady(2);
  link_.listener().OnEntry({.step = 4, .versions = {1}, .first_versions = {1}, .sites = {"eu", "us"}});
  Answer(missed, {.version = 1, .outer = {1, 0}, .merged = {"us"}, .sites = {"eu", "us"}}, {0.25f}, DigestOf(0.75f));
  EXPECT_EQ(*joined.get(), 4);
  EXPECT_THAT(value_, ElementsAre(0.25f));
  EXPECT_EQ(engine_->stays(), 2);
  lost.done(absl::OkStatus(), 0);  // of the earlier stay: without effect
  ASSERT_TRUE(engine_->AfterStep(4).ok());
  EXPECT_EQ(*link_.NextUpload().chunks, ChunksOf({0.5f}));  // what was not merged is in the next contribution
}

TEST_F(SyncEngineTest, SiteThatWasDroppedTakesTheAnchorWhereUpdatesAreGoneAndKeepsWhatItTrained) {
  ASSERT_TRUE(FirstJoin(1, 0, 0, 0).ok());
  value_[0] = 0.5f;
  ASSERT_TRUE(engine_->AfterStep(2).ok());
  link_.NextUpload();
  link_.NextDownload();
  auto joined = std::async(std::launch::async, [this] { return engine_->AfterStep(3); });
  link_.listener().OnWelcome({.resumed = false, .map = map_, .last_admitted = {-1}});
  link_.NextDownload().done(absl::NotFoundError("pruned"), 0);
  transport::DownloadRequest anchor = link_.NextDownload();
  EXPECT_EQ(anchor.kind, transport::DownloadKind::kAnchor);
  Answer(anchor, {.version = 6}, {4, 0}, DigestOf(4));
  link_.AwaitReady(2);
  link_.listener().OnEntry({.step = 12, .versions = {6}, .first_versions = {6}, .sites = {"eu", "us"}});
  EXPECT_EQ(*joined.get(), 12);
  EXPECT_THAT(value_, ElementsAre(3.5f));
}

TEST_F(SyncEngineTest, SiteOfWhichAnUnknownContributionWasMergedStartsFromTheAnchor) {
  ASSERT_TRUE(FirstJoin(1, 0, 0, 0).ok());
  value_[0] = 0.5f;
  ASSERT_TRUE(engine_->AfterStep(1).ok());
  link_.NextDownload();
  link_.listener().OnWelcome({.resumed = false, .map = map_, .last_admitted = {0}});
  auto joined = std::async(std::launch::async, [this] { return engine_->AfterStep(3); });
  transport::DownloadRequest update = link_.NextDownload();
  Answer(update, {.version = 1, .outer = {1, 0}, .merged = {"eu"}, .sites = {"eu"}}, {0.25f}, DigestOf(0.75f));
  link_.AwaitReady(2);
  link_.listener().OnEntry({.step = 4, .versions = {1}, .first_versions = {1}, .sites = {"eu"}});
  EXPECT_EQ(*joined.get(), 4);
  EXPECT_THAT(value_, ElementsAre(0.75f));
}

TEST_F(SyncEngineTest, StepLoopHoldsWhileTheRunIsPaused) {
  ASSERT_TRUE(FirstJoin(1, 0, 0, 0).ok());
  link_.listener().OnHold(true);
  auto held = std::async(std::launch::async, [this] { return engine_->AfterStep(1); });
  link_.listener().OnHold(false);
  EXPECT_EQ(*held.get(), 1);
}

TEST_F(SyncEngineTest, OpenRoundWithoutTheJoinerMovesItWhenItIsDue) {
  // Version 3 is open and was sent at step 8; the joiner enters after step 8 and contributes from base 4 on.
  ASSERT_TRUE(FirstJoin(2, 3, 8, 4).ok());
  transport::DownloadRequest update = link_.NextDownload();
  EXPECT_EQ(update.version, 3);
  value_[0] = 1.5f;  // trained by 0.5
  Answer(update, {.version = 4, .outer = {1, 0}, .merged = {"us"}, .sites = {"eu", "us"}}, {0.25f}, DigestOf(1.75f));
  ASSERT_TRUE(engine_->AfterStep(9).ok());
  EXPECT_THAT(value_, ElementsAre(1.25f));  // Δ = 0.5 as before
}

TEST_F(SyncEngineTest, JoinerWhoseConnectionBreaksGoesOnWithWhatItDownloads) {
  auto joined = std::async(std::launch::async, [this] { return engine_->Join(); });
  link_.listener().OnWelcome({.resumed = false, .map = map_, .last_admitted = {}});
  transport::DownloadRequest anchor = link_.NextDownload();
  EXPECT_TRUE(link_.listener().GetStanding().joining);
  link_.listener().OnWelcome({.resumed = false, .kept_transfers = true, .map = map_, .last_admitted = {}});
  Answer(anchor, {.version = 3}, {5, 0}, DigestOf(5));
  link_.AwaitReady(1);
  link_.listener().OnEntry({.step = 8, .versions = {3}, .first_versions = {3}, .sites = {"eu"}});
  EXPECT_EQ(*joined.get(), 8);
  EXPECT_THAT(value_, ElementsAre(5));
}

TEST_F(SyncEngineTest, NonFiniteValueEndsTheLoopAndIsNotSent) {
  ASSERT_TRUE(FirstJoin(1, 0, 0, 0).ok());
  value_[0] = std::nanf("");
  auto step = engine_->AfterStep(2);
  if (step.ok()) step = engine_->AfterStep(3);  // the task thread may have met it already, or not
  EXPECT_EQ(step.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(step.status().message()), HasSubstr("w is nan at index 0"));
}

TEST_F(SyncEngineTest, StopEndsAWaitForAnUpdate) {
  ASSERT_TRUE(FirstJoin(1, 0, 0, 0).ok());
  ASSERT_TRUE(engine_->AfterStep(2).ok());
  auto waiting = std::async(std::launch::async, [this] { return engine_->AfterStep(3); });
  engine_->RequestStop();
  EXPECT_EQ(waiting.get().status().code(), absl::StatusCode::kCancelled);
}

TEST_F(SyncEngineTest, RoundsThatAreOpenAtTheEndReachTheAnchorAlone) {
  ASSERT_TRUE(FirstJoin(1, 0, 0, 0).ok());
  engine_->Report({.step = 2});
  ASSERT_TRUE(engine_->AfterStep(2).ok());
  link_.NextUpload().done(absl::OkStatus());
  transport::DownloadRequest update = link_.NextDownload();
  Answer(update, {.version = 1, .outer = {1, 0}, .merged = {"eu"}, .sites = {"eu"}}, {0.25f}, DigestOf(0.75f));
  ASSERT_TRUE(engine_->CompleteRounds().ok());
  EXPECT_THAT(engine_->GetStanding().versions, ElementsAre(1));
  EXPECT_THAT(value_, ElementsAre(1));
}

}  // namespace
}  // namespace causeway::worker
