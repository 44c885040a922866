#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "formats/run_yaml.h"
#include "tests/worker/site/site_for_test.h"
#include "worker/site/checkpoint_json.h"
#include "worker/site/wait_notice.h"

namespace causeway::worker {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

TEST_F(SiteTest, JoinerTakesTheAnchorAndThePlaceItIsGiven) {
  const auto step = FirstJoin(/*anchor=*/5, /*version=*/3, /*step=*/8, /*first=*/3);
  ASSERT_TRUE(step.ok()) << step.status();
  EXPECT_EQ(*step, 8);
  EXPECT_THAT(value_, ElementsAre(5));
  EXPECT_THAT(site_->sites(), ElementsAre("eu", "us"));
}

TEST_F(SiteTest, SiteWithoutInitialValuesOffersNoneAndTakesThoseOfTheRun) {
  site_->HasNoInitialValues(absl::FailedPreconditionError("the model is on another machine"));
  auto joined = JoinAside();
  Welcome();
  transport::DownloadRequest request = link_.NextDownload();
  EXPECT_EQ(request.held_digest, 0u);
  Answer(request, {.version = 0}, {5, 0}, DigestOf(5));
  Enter({.ready = 1, .step = 0, .version = 0});
  ASSERT_TRUE(joined.get().ok());
  EXPECT_THAT(value_, ElementsAre(5));
}

TEST_F(SiteTest, SiteWithoutInitialValuesFailsWhenItIsTheOneToSupplyThem) {
  site_->HasNoInitialValues(absl::FailedPreconditionError("the model is on another machine"));
  auto joined = JoinAside();
  Welcome();
  link_.listener().OnSeedRequest();
  EXPECT_EQ(joined.get().status(), absl::FailedPreconditionError("the model is on another machine"));
  EXPECT_EQ(link_.num_uploads(), 0u);
}

TEST_F(JoinedSiteTest, SendsAtItsStepAndMixesAfterTheDelay) {
  ASSERT_EQ(*site_->AfterStep(1), 1);
  value_[0] = 0.5f;
  ASSERT_EQ(*site_->AfterStep(2), 2);  // SEND of base 0: H + t_0 = 2
  const transport::UploadRequest upload = link_.NextUpload();
  EXPECT_EQ(upload.base, 0);
  EXPECT_EQ(*upload.chunks, SentChunks({0.5f}));
  upload.done(absl::OkStatus());
  AnswerUpdate({.version = 1, .merged = {"eu", "us"}}, 0.75f);
  value_[0] = 0.375f;
  ASSERT_EQ(*site_->AfterStep(3), 3);  // APPLY, α = 0
  EXPECT_THAT(value_, ElementsAre(0.75f));
}

TEST_F(SiteTest, WhatIsSentIsTheStepsThatSentHoweverSoonThetaChanges) {
  offload::BusSchedule bus;
  replica::HostStore scheduled({value_}, &bus);
  int ready = 0;
  for (replica::HostStore* store : {&store_, &scheduled}) {
    Make(store);
    const auto join = [this] { return site_->Join(); };
    ASSERT_TRUE(Join(join, /*anchor=*/1, /*version=*/0, /*step=*/0, /*first=*/0, ++ready).ok());
    for (const core::Version base : {0, 1}) {
      value_[0] = 0.5f;
      ASSERT_TRUE(site_->AfterStep(2 * (base + 1)).ok());
      bus.BeginUpdate();
      bus.AwaitCopied({0, 1});
      bus.EndUpdate();
      value_[0] = 7;
      const transport::UploadRequest upload = link_.NextUpload();
      EXPECT_EQ(upload.base, base);
      EXPECT_EQ(*upload.chunks, SentChunks({0.5f}));
      upload.done(absl::OkStatus());
      transport::DownloadRequest update = link_.NextDownload();
      Answer(update, {.version = base + 1, .outer = {1, 0}, .merged = {"eu"}, .sites = {"eu"}}, {0}, DigestOf(1));
      ASSERT_TRUE(site_->AfterStep(2 * (base + 1) + 1).ok());
    }
    link_.NextDownload();  // of the next update, which does not come
    site_.reset();
  }
}

TEST_F(SiteTest, AutomaticDelayAppliesAsLateAsItMayWhileNothingIsMeasured) {
  config_.sync.sync_every = 4;
  config_.sync.fragment_sync_delay = core::kAutoDelay;
  Make();
  ASSERT_TRUE(FirstJoin(1, 0, 0, 0).ok());
  ASSERT_TRUE(site_->AfterStep(4).ok());
  link_.NextUpload().done(absl::OkStatus());
  AnswerUpdate({.version = 1, .merged = {"eu"}}, 0.75f);
  for (core::Step t : {5, 6}) {
    ASSERT_TRUE(site_->AfterStep(t).ok());
    EXPECT_THAT(value_, ElementsAre(1));
  }
  ASSERT_TRUE(site_->AfterStep(7).ok());
  EXPECT_THAT(value_, ElementsAre(0.75f));
  ASSERT_TRUE(site_->AfterStep(8).ok());  // the next send has a measured latency to go by
  site_->Leave(/*finished=*/false, "the test is over");
  const core::FragmentProgress progress = link_.progress().fragments.at(0);
  EXPECT_LE(progress.delay, 3);
  EXPECT_THAT(progress.reason, HasSubstr("updates take"));
}

TEST_F(JoinedSiteTest, SiteWhoseAnchorDiffersFromTheCoordinatorsTakesANewPlaceWithTheRightOne) {
  Send().done(absl::OkStatus());
  AnswerUpdate({.version = 1, .merged = {"eu"}}, 9);
  link_.AwaitRejoin();
  EXPECT_THAT(link_.listener().GetStanding().versions, ElementsAre());
  auto joined = StepAside(3);
  Welcome({0});
  AnswerAnchor(/*version=*/1, 9);
  Enter({.ready = 2, .step = 4, .version = 1});
  EXPECT_EQ(*joined.get(), 4);
  EXPECT_THAT(value_, ElementsAre(9));
}

TEST_F(JoinedSiteTest, SiteThatIsBehindTheUpdatesThatAreKeptTakesANewPlaceAndKeepsWhatItTrained) {
  value_[0] = 0.5f;
  ASSERT_TRUE(site_->AfterStep(1).ok());
  link_.NextDownload().done(absl::NotFoundError("pruned"), 0);
  link_.AwaitRejoin();
  EXPECT_THAT(value_, ElementsAre(0.5f));  // the step loop's, until it waits in Join
  auto joined = StepAside(2);
  Welcome({-1});
  AnswerAnchor(/*version=*/6, 4);
  Enter({.ready = 2, .step = 12, .version = 6});
  EXPECT_EQ(*joined.get(), 12);
  EXPECT_THAT(value_, ElementsAre(3.5f));
}

TEST_F(JoinedSiteTest, SiteThatWasDroppedCatchesUpByTheUpdatesItMissedAndKeepsWhatItTrained) {
  Send(0.5f);
  const transport::DownloadRequest lost = link_.NextDownload();  // never answered
  auto joined = StepAside(3);
  Welcome({-1});
  const transport::DownloadRequest missed = link_.NextDownload();
  Enter({.ready = 2, .step = 4, .version = 1});
  AnswerUpdate(missed, {.version = 1, .merged = {"us"}}, 0.75f);
  EXPECT_EQ(*joined.get(), 4);
  EXPECT_THAT(value_, ElementsAre(0.25f));
  EXPECT_EQ(site_->stays(), 2);
  lost.done(absl::OkStatus(), 0);  // of the earlier stay: without effect
  ASSERT_TRUE(site_->AfterStep(4).ok());
  EXPECT_EQ(*link_.NextUpload().chunks, SentChunks({0.5f}));  // what was not merged is in the next contribution
}

TEST_F(JoinedSiteTest, SiteThatWasDroppedTakesTheAnchorWhereUpdatesAreGoneAndKeepsWhatItTrained) {
  Send(0.5f);
  link_.NextDownload();
  auto joined = StepAside(3);
  Welcome({-1});
  link_.NextDownload().done(absl::NotFoundError("pruned"), 0);
  AnswerAnchor(/*version=*/6, 4);
  Enter({.ready = 2, .step = 12, .version = 6});
  EXPECT_EQ(*joined.get(), 12);
  EXPECT_THAT(value_, ElementsAre(3.5f));
}

TEST_F(JoinedSiteTest, SiteOfWhichAnUnknownContributionWasMergedStartsFromTheAnchor) {
  value_[0] = 0.5f;
  ASSERT_TRUE(site_->AfterStep(1).ok());
  link_.NextDownload();
  Welcome({0});
  auto joined = StepAside(3);
  AnswerUpdate({.version = 1, .merged = {"eu"}}, 0.75f);
  Enter({.ready = 2, .step = 4, .version = 1});
  EXPECT_EQ(*joined.get(), 4);
  EXPECT_THAT(value_, ElementsAre(0.75f));
}

TEST_F(JoinedSiteTest, StepLoopHoldsWhileTheRunIsPaused) {
  link_.listener().OnHold(true);
  auto held = StepAside(1);
  link_.listener().OnHold(false);
  EXPECT_EQ(*held.get(), 1);
}

TEST_F(SiteTest, OpenRoundWithoutTheJoinerMovesItWhenItIsDue) {
  // Version 3 is open and was sent at step 8; the joiner enters after step 8 and contributes from base 4 on.
  ASSERT_TRUE(FirstJoin(2, 3, 8, 4).ok());
  value_[0] = 1.5f;  // trained by 0.5
  AnswerUpdate({.version = 4, .merged = {"us"}}, 1.75f);
  ASSERT_TRUE(site_->AfterStep(9).ok());
  EXPECT_THAT(value_, ElementsAre(1.25f));  // Δ = 0.5 as before
}

TEST_F(SiteTest, JoinerWhoseConnectionBreaksGoesOnWithWhatItDownloads) {
  auto joined = JoinAside();
  Welcome();
  transport::DownloadRequest anchor = link_.NextDownload();
  EXPECT_TRUE(link_.listener().GetStanding().joining);
  link_.listener().OnWelcome({.resumed = false, .kept_transfers = true, .map = map_, .last_admitted = {}});
  Answer(anchor, {.version = 3}, {5, 0}, DigestOf(5));
  Enter({.ready = 1, .step = 8, .version = 3});
  EXPECT_EQ(*joined.get(), 8);
  EXPECT_THAT(value_, ElementsAre(5));
}

TEST_F(SiteTest, SiteThatIsDroppedWhileItHoldsBeforeItsFirstStepJoinsAnew) {
  auto joined = JoinAside();
  link_.listener().OnHold(true);
  Welcome();
  AnswerAnchor(/*version=*/3, 5);
  Enter({.ready = 1, .step = 8, .version = 3});
  EXPECT_EQ(link_.NextDownload().version, 3);
  link_.AwaitProgress([](const core::Progress& progress) { return progress.wall_s > 0; });  // it has entered, and holds
  Welcome({-1});
  AnswerUpdate({.version = 4, .merged = {"us"}}, 4.75f);
  Enter({.ready = 2, .step = 10, .version = 4});
  link_.listener().OnHold(false);
  EXPECT_EQ(*joined.get(), 10);
  EXPECT_THAT(value_, ElementsAre(4.75f));
}

TEST_F(JoinedSiteTest, SiteThatIsTakenForOneThatGoesOnAsksForANewPlace) {
  link_.listener().OnWelcome({.resumed = true, .kept_transfers = false, .map = map_, .last_admitted = {-1}});
  link_.AwaitRejoin();
  EXPECT_THAT(link_.listener().GetStanding().versions, ElementsAre());
}

// A change of outer.lr, from version 50 on.
core::SettingsChain ChainOf(core::RunConfig config, int revisions, uint64_t nonce = 1) {
  core::SettingsChain chain;
  for (int i = 1; i <= revisions; ++i) {
    config.outer.lr = 0.1f * static_cast<float>(i);
    core::SettingsRevision one{.number = i, .step = 100 * i, .versions = {50 * i}, .nonce = nonce};
    one.run_config = formats::SerializeRunConfig(config);
    one.digest = core::DigestOf(i == 1 ? 0 : chain.revisions.back().digest, one);
    chain.revisions.push_back(std::move(one));
  }
  return chain;
}

TEST_F(JoinedSiteTest, SiteThatIsAheadInSettingsAsksForANewPlaceAndStartsFromTheAnchor) {
  const auto welcome = [&](const core::SettingsChain& settings) {
    link_.listener().OnWelcome(
        {.resumed = true, .kept_transfers = true, .map = map_, .last_admitted = {-1}, .settings = settings});
  };
  welcome(ChainOf(config_, 2));
  EXPECT_EQ(site_->settings().revision(), 2);
  welcome(ChainOf(config_, 3));
  EXPECT_EQ(site_->settings().revision(), 3);
  welcome(ChainOf(config_, 2));  // a state that lacks the third
  link_.AwaitRejoin();
  EXPECT_EQ(site_->settings().revision(), 2);
  EXPECT_THAT(link_.listener().GetStanding().versions, ElementsAre());
  welcome(ChainOf(config_, 3, /*nonce=*/9));  // others of the same numbers
  EXPECT_EQ(site_->settings().digest(), ChainOf(config_, 3, 9).revisions[2].digest);
}

TEST_F(JoinedSiteTest, NonFiniteValueEndsTheLoopAndIsNotSent) {
  value_[0] = std::nanf("");
  auto step = site_->AfterStep(2);
  if (step.ok()) step = site_->AfterStep(3);  // the task thread may have met it already, or not
  EXPECT_EQ(step.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(step.status().message()), HasSubstr("w is nan at index 0"));
}

TEST_F(JoinedSiteTest, StopEndsAWaitForAnUpdate) {
  ASSERT_TRUE(site_->AfterStep(2).ok());
  auto waiting = StepAside(3);
  site_->RequestStop();
  EXPECT_EQ(waiting.get().status().code(), absl::StatusCode::kCancelled);
}

TEST_F(JoinedSiteTest, RoundsThatAreOpenAtTheEndReachTheAnchorAlone) {
  site_->ReportWith([](SiteReport& whole) { whole.Trained({.step = 2}); });
  Send().done(absl::OkStatus());
  AnswerUpdate({.version = 1, .merged = {"eu"}}, 0.75f);
  ASSERT_TRUE(site_->CompleteRounds().ok());
  EXPECT_THAT(link_.listener().GetStanding().versions, ElementsAre(1));
  EXPECT_THAT(value_, ElementsAre(1));
}

// ---- Checkpoints ----

// A checkpoint as a file would bring it back: with arrays of its own.
class SiteCheckpointTest : public JoinedSiteTest {
 protected:
  SiteCheckpoint Save() {
    SiteCheckpoint copy;
    EXPECT_TRUE(site_->Checkpoint([&](const SiteCheckpoint& checkpoint) {
      copy = checkpoint;
      Own(copy);
    }));
    return copy;
  }

  static void Own(SiteCheckpoint& checkpoint) {
    auto storage = std::make_shared<std::deque<std::vector<float>>>();
    for (replica::ReplicaArrays& arrays : checkpoint.arrays) {
      for (std::span<const float>* values :
           {&arrays.anchor, &arrays.momentum, &arrays.step, &arrays.residual, &arrays.next_residual}) {
        *values = storage->emplace_back(values->begin(), values->end());
      }
    }
    checkpoint.storage = storage;
  }

  // Another process goes on from the checkpoint, in the session that is still in the run.
  absl::StatusOr<core::Step> Restart(SiteCheckpoint checkpoint) {
    site_.reset();
    Make();
    site_->Restore(std::move(checkpoint));
    auto joined = JoinAside();
    transport::LinkListener& listener = link_.listener();
    EXPECT_TRUE(listener.GetStanding().from_checkpoint);
    listener.OnWelcome({.resumed = true, .map = map_, .last_admitted = {-1}});
    return joined.get();
  }
};

TEST_F(SiteCheckpointTest, SettingsAreKeptAndShownToARebuildBeforeAnyWelcome) {
  const core::SettingsChain chain = ChainOf(config_, 2);
  link_.listener().OnWelcome(
      {.resumed = true, .kept_transfers = true, .map = map_, .last_admitted = {-1}, .settings = chain});
  const SiteCheckpoint checkpoint = Save();
  EXPECT_EQ(checkpoint.settings, chain);
  const std::string text = CheckpointToJson({.run = "test", .site = "eu", .session = "s", .lineage = "l"}, checkpoint);
  EXPECT_EQ(CheckpointFromJson(text)->site.settings, chain);
  site_.reset();
  Make();
  site_->Restore(checkpoint);
  auto joined = JoinAside();
  transport::HeldState shown;
  link_.listener().OnHoldingsWanted([&](const transport::HeldState& held) { shown = held; });
  EXPECT_EQ(shown.settings, chain);
  EXPECT_THAT(shown.fragments, SizeIs(1));
  site_->RequestStop();
  EXPECT_FALSE(joined.get().ok());
}

TEST_F(SiteCheckpointTest, ACheckpointThatIsAheadInSettingsAsksForANewPlace) {
  link_.listener().OnWelcome(
      {.resumed = true, .kept_transfers = true, .map = map_, .last_admitted = {-1}, .settings = ChainOf(config_, 2)});
  const SiteCheckpoint checkpoint = Save();
  site_.reset();
  Make();
  site_->Restore(checkpoint);
  auto joined = JoinAside();
  link_.listener().OnWelcome({.resumed = true, .map = map_, .last_admitted = {-1}, .settings = ChainOf(config_, 1)});
  link_.AwaitRejoin();
  EXPECT_EQ(site_->settings().revision(), 1);
  EXPECT_THAT(link_.listener().GetStanding().versions, ElementsAre());
  site_->RequestStop();
  EXPECT_FALSE(joined.get().ok());
}

TEST_F(SiteCheckpointTest, UpdateThatWasTakenAndNotYetInThetaMovesItAfterARestart) {
  Send(0.5f);
  transport::DownloadRequest update = link_.NextDownload();
  Answer(update, {.version = 1, .outer = {0.5f, 0.5f}, .merged = {"us"}, .sites = {"us"}}, {0.25f}, DigestOf(0.8125f));
  site_->FinishTasks();
  const SiteCheckpoint checkpoint = Save();
  EXPECT_EQ(checkpoint.facts.fragments.at(0).version, 1);
  EXPECT_EQ(checkpoint.facts.fragments.at(0).applied, 0);
  ASSERT_FALSE(checkpoint.arrays.at(0).step.empty());
  EXPECT_EQ(checkpoint.arrays.at(0).step[0], 0.375f);  // v = 0.25, s = 0.5 · 0.25 + 0.25

  EXPECT_EQ(*Restart(checkpoint), 2);
  EXPECT_THAT(link_.listener().GetStanding().versions, ElementsAre(1));
  EXPECT_THAT(value_, ElementsAre(0.5f));
  EXPECT_EQ(*site_->AfterStep(3), 3);
  EXPECT_THAT(value_, ElementsAre(0.3125f));  // 0.5 − 0.5 · 0.375
  EXPECT_EQ(link_.NextDownload().version, 1);
}

TEST_F(SiteCheckpointTest, ContributionThatIsNotAdmittedIsSentAgainAfterARestart) {
  const transport::UploadRequest before = Send(0.5f);
  link_.NextDownload();
  EXPECT_EQ(*Restart(Save()), 2);
  const transport::UploadRequest again = link_.NextUpload();
  EXPECT_EQ(again.base, 0);
  EXPECT_EQ(again.steps, 1);
  EXPECT_EQ(*again.chunks, *before.chunks);
}

TEST_F(SiteCheckpointTest, CheckpointWhoseArraysDoNotFitTheRunIsRefused) {
  SiteCheckpoint checkpoint = Save();
  checkpoint.arrays.at(0).momentum = checkpoint.arrays.at(0).momentum.first(10);
  const absl::Status status = Restart(checkpoint).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("momentum of fragment 0: expected 4096 values, got 10"));
}

TEST(WaitNotice, ReasonIsTakenOnceAfterFiveSeconds) {
  const core::Clock::TimePoint begin{};
  WaitNotice notice;
  EXPECT_EQ(notice.Take(begin + seconds(9)), "");
  notice.Heard("1 of 2 sites are ready", begin);
  EXPECT_EQ(notice.Take(begin + milliseconds(4999)), "");
  EXPECT_EQ(notice.Take(begin + seconds(5)), "1 of 2 sites are ready");
  EXPECT_EQ(notice.Take(begin + seconds(6)), "");
}

TEST(WaitNotice, ALaterReasonCountsFromItsOwnTime) {
  const core::Clock::TimePoint begin{};
  WaitNotice notice;
  notice.Heard("1 of 3", begin);
  notice.Heard("2 of 3", begin + seconds(4));
  EXPECT_EQ(notice.heard(), 2) << "a wait that began before is to end";
  EXPECT_EQ(notice.Take(begin + seconds(8)), "");
  EXPECT_EQ(notice.Take(begin + seconds(9)), "2 of 3");
}

TEST(WaitNotice, NothingIsSaidOfAWaitThatIsOver) {
  const core::Clock::TimePoint begin{};
  WaitNotice notice;
  notice.Heard("1 of 2", begin);
  notice.Over();
  EXPECT_EQ(notice.Take(begin + seconds(9)), "");
}

TEST(WaitNotice, AWaitEndsWhenItIsToBeLookedAtAndNoLaterThanItMay) {
  const core::Clock::TimePoint begin{};
  WaitNotice notice;
  EXPECT_EQ(notice.Until(begin, seconds(60)), seconds(60));
  notice.Heard("1 of 2", begin);
  EXPECT_EQ(notice.Until(begin + seconds(1), seconds(60)), seconds(4));
  EXPECT_EQ(notice.Until(begin + seconds(1), seconds(2)), seconds(2));
  EXPECT_EQ(notice.Until(begin + seconds(9), seconds(60)), seconds(0));
}

}  // namespace
}  // namespace causeway::worker
