// Joining, places in the schedule, contributions and their verdicts, as the rules alone decide them.
#include <gmock/gmock-more-matchers.h>

#include "tests/worker/site/site_rules_for_test.h"

namespace causeway::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Turn = SiteRules::Turn;

class QuorumRulesTest : public SiteRulesTest {
 protected:
  QuorumRulesTest() : SiteRulesTest(core::SyncMode::kQuorum) {}
};

// ---- Joining ----

TEST_F(SiteRulesTest, JoinerSaysThatItIsReadyWhenItHasAllAnchorsAndTrainsWhenItHasItsPlace) {
  EXPECT_EQ(rules_->turn(), Turn::kJoin);
  Welcome();
  EXPECT_EQ(rules_->state().stay.stage, Stage::kUnsettled) << "the step thread has not come";
  Handle(event::Joining{});
  EXPECT_EQ(rules_->turn(), Turn::kWait);
  const auto offers = Take<action::OfferInitial>();
  ASSERT_THAT(offers, SizeIs(2));
  Handle(event::Fetched{.tag = offers[0].tag, .version = 3});
  EXPECT_THAT(Take<action::SendReady>(), IsEmpty());
  Handle(event::Fetched{.tag = offers[1].tag, .version = 3});
  EXPECT_THAT(Take<action::SendReady>(), SizeIs(1));
  EXPECT_EQ(rules_->turn(), Turn::kWait);
  GiveEntry(/*step=*/14, /*version=*/3);
  EXPECT_EQ(rules_->turn(), Turn::kGoOn);
  EXPECT_EQ(rules_->state().step, 14);
  EXPECT_EQ(rules_->state().counts.entered, 1);
  EXPECT_EQ(rules_->CompletedRounds(), 3);
  for (const auto& move : Take<action::MoveTheta>()) EXPECT_EQ(move.how, action::MoveTheta::How::kSet);
}

TEST_F(SiteRulesTest, PlaceThatIsGivenBeforeTheAnchorsAreHereWaitsForThem) {
  Handle(event::Joining{});
  Welcome();
  GiveEntry(/*step=*/0, /*version=*/0);
  EXPECT_EQ(rules_->state().stay.stage, Stage::kAnchoring);
  GiveAnchors(0);
  EXPECT_EQ(rules_->state().stay.stage, Stage::kTraining);
  EXPECT_THAT(Take<action::SendReady>(), IsEmpty()) << "its place says that this is known";
}

TEST_F(SiteRulesTest, JoinerCatchesUpWithTheVersionsOfItsPlaceByUpdates) {
  Handle(event::Joining{});
  Welcome();
  GiveAnchors(2);
  GiveEntry(/*step=*/14, /*version=*/3);
  EXPECT_EQ(rules_->state().stay.stage, Stage::kCatchingUp);
  GiveUpdate(0, std::nullopt);
  EXPECT_EQ(rules_->state().stay.stage, Stage::kCatchingUp);
  GiveUpdate(1, std::nullopt);
  EXPECT_EQ(rules_->state().stay.stage, Stage::kTraining);
  EXPECT_EQ(rules_->CompletedRounds(), 3);
}

TEST_F(SiteRulesTest, AnchorThatIsLostWhileTheSiteEntersIsWaitedForLikeAnyOther) {
  Handle(event::Joining{});
  Welcome();
  GiveAnchors(2);
  GiveEntry(/*step=*/14, /*version=*/3);
  takes_ = false;
  GiveUpdate(0, std::nullopt);
  GiveUpdate(1, std::nullopt);
  Handle(event::UpdateTaken{0, ""});
  GiveUpdate(0, std::nullopt);  // beyond its place
  Handle(event::UpdateTaken{1, ""});
  EXPECT_EQ(rules_->state().stay.stage, Stage::kEntering) << "as soon as fragment 0 stands still";
  Handle(event::UpdateTaken{0, "digest 1, expected 2"});
  EXPECT_EQ(rules_->state().stay.stage, Stage::kCatchingUp);
  const auto asked = TakeOne<action::FetchAnchor>();
  EXPECT_EQ(asked.at_least, 4);
  now_us_ += 5'000'000;
  Handle(event::Ticked{});
  const auto again = TakeOne<action::FetchAnchor>();
  Handle(event::Fetched{.tag = again.tag, .version = 4});
  EXPECT_EQ(rules_->state().stay.stage, Stage::kTraining);
}

TEST_F(SiteRulesTest, TimeBetweenTwoStaysIsNoStep) {
  config_.sync.fragment_sync_delay = core::kAutoDelay;
  Make();
  Enter();
  for (core::Step step = 1; step <= 4; ++step) {
    now_us_ += 100'000;
    Step(step);
  }
  Admit(TakeOne<action::Upload>());
  GiveUpdate(1, /*merged=*/0);
  const std::string measured = rules_->state().delay.Choose().reason;
  EXPECT_THAT(measured, HasSubstr("steps 100.0 ms"));
  Handle(event::Joining{});
  Welcome();
  Handle(event::Joining{});
  now_us_ += 60'000'000;
  GiveEntry(/*step=*/5, /*version=*/0);
  GiveUpdate(0, std::nullopt);
  ASSERT_EQ(rules_->state().stay.stage, Stage::kTraining);
  Step(6);
  EXPECT_EQ(rules_->state().delay.Choose().reason, measured);
}

TEST_F(SiteRulesTest, SiteThatIsAskedForTheInitialParametersSendsThemOncePerRequest) {
  Handle(event::Joining{});
  Welcome();
  Handle(event::SeedRequested{});
  EXPECT_THAT(Take<action::UploadInitial>(), SizeIs(1));
  Handle(event::Ticked{});
  EXPECT_THAT(Take<action::UploadInitial>(), IsEmpty());
  Handle(event::SeedRequested{});
  EXPECT_THAT(Take<action::UploadInitial>(), SizeIs(1));
}

TEST_F(SiteRulesTest, SiteWithoutInitialValuesOffersNoneAndFailsWhenItIsAskedForThem) {
  rules_->HasNoInitialValues(absl::FailedPreconditionError("on another machine"));
  Handle(event::Joining{});
  Welcome();
  EXPECT_THAT(Take<action::OfferInitial>(), IsEmpty());
  EXPECT_THAT(Take<action::FetchAnchor>(), SizeIs(2));
  Handle(event::SeedRequested{});
  EXPECT_EQ(rules_->failure(), absl::FailedPreconditionError("on another machine"));
}

TEST_F(SiteRulesTest, AnchorThatDoesNotBeginIsAskedForAgainAfterFiveSeconds) {
  rules_->HasNoInitialValues(absl::FailedPreconditionError("on another machine"));
  Handle(event::Joining{});
  Welcome();
  const auto asked = Take<action::FetchAnchor>();
  ASSERT_THAT(asked, SizeIs(2));
  now_us_ += 3'000'000;
  Handle(event::FetchBegan{asked[1].tag});
  now_us_ += 1'999'999;
  Handle(event::Ticked{});
  EXPECT_THAT(Take<action::FetchAnchor>(), IsEmpty());
  now_us_ += 1;
  Handle(event::Ticked{});
  const auto again = TakeOne<action::FetchAnchor>();
  EXPECT_EQ(again.tag.fragment, 0);
  EXPECT_NE(again.tag, asked[0].tag);
  Handle(event::Fetched{.tag = asked[0].tag, .version = 1});
  EXPECT_EQ(rules_->state().fragments[0].incoming(), Incoming::kAnchoring) << "the first question does not count";
  Handle(event::Fetched{.tag = again.tag, .version = 1});
  EXPECT_TRUE(rules_->state().fragments[0].anchored());
}

TEST_F(SiteRulesTest, ReadyIsSaidAgainAfterFiveSecondsAndOnANewStreamAtOnce) {
  Handle(event::Joining{});
  Welcome();
  GiveAnchors(0);
  EXPECT_THAT(Take<action::SendReady>(), SizeIs(1));
  now_us_ += 4'999'999;
  Handle(event::Ticked{});
  EXPECT_THAT(Take<action::SendReady>(), IsEmpty());
  now_us_ += 1;
  Handle(event::Ticked{});
  EXPECT_THAT(Take<action::SendReady>(), SizeIs(1));
  Welcome(/*resumed=*/false, /*kept_transfers=*/true);
  EXPECT_THAT(Take<action::SendReady>(), SizeIs(1));
  EXPECT_EQ(rules_->state().stay.number, 1) << "a joiner without a place goes on";
}

TEST_F(SiteRulesTest, WelcomeThatKeepsNoTransfersBeginsANewStay) {
  Handle(event::Joining{});
  Welcome();
  const auto first = Take<action::OfferInitial>();
  Welcome();
  EXPECT_EQ(rules_->state().stay.number, 2);
  EXPECT_THAT(Take<action::OfferInitial>(), SizeIs(2));
  for (const auto& offer : first) Handle(event::Fetched{.tag = offer.tag, .version = 1});
  EXPECT_EQ(rules_->state().stay.stage, Stage::kAnchoring) << "of an earlier stay";
}

TEST_F(SiteRulesTest, SiteThatHoldsNothingAndIsTakenForOneThatGoesOnAsksForANewPlace) {
  Handle(event::Joining{});
  Welcome(/*resumed=*/true);
  EXPECT_THAT(Take<action::Rejoin>(), SizeIs(1));
}

TEST_F(SiteRulesTest, PlaceOfAnotherShapeFailsTheSite) {
  for (const core::Entry& entry :
       {core::Entry{.step = 0, .versions = {0}, .first_versions = {0, 0}},
        core::Entry{.step = 0, .versions = {0, 0}, .first_versions = {0}},
        core::Entry{.step = -1, .versions = {0, 0}, .first_versions = {0, 0}},
        core::Entry{.step = (int64_t{1} << 53) + 1, .versions = {0, 0}, .first_versions = {0, 0}}}) {
    Make();
    Handle(event::Joining{});
    Welcome();
    Handle(event::EntryGiven{entry});
    EXPECT_THAT(rules_->failure().message(), HasSubstr("entry: expected"));
    EXPECT_EQ(rules_->turn(), Turn::kFailed);
  }
  Make();
  Handle(event::Joining{});
  Welcome();
  Handle(event::EntryGiven{{.step = int64_t{1} << 53, .versions = {0, 0}, .first_versions = {0, 0}}});
  EXPECT_TRUE(rules_->failure().ok());
}

TEST_F(SiteRulesTest, JoinerTellsOfItsData) {
  rules_->SetData({.training = core::DataFingerprint{.tokens = 7, .digest = 8}, .held_out = std::nullopt});
  EXPECT_EQ(rules_->GetStanding().data.training->tokens, 7);
}

TEST_F(SiteRulesTest, WhatASiteSaysThatItHoldsIsWhatItHasAPlaceWith) {
  EXPECT_FALSE(rules_->GetStanding().joining);
  Handle(event::Joining{});
  Welcome();
  EXPECT_TRUE(rules_->GetStanding().joining);
  GiveAnchors(2);
  EXPECT_TRUE(rules_->GetStanding().joining);
  EXPECT_THAT(rules_->GetStanding().versions, IsEmpty());
  GiveEntry(/*step=*/10, /*version=*/2);
  EXPECT_FALSE(rules_->GetStanding().joining);
  EXPECT_THAT(rules_->GetStanding().versions, ElementsAre(2, 2));
  EXPECT_FALSE(rules_->GetStanding().from_checkpoint);
}

// ---- A checkpoint ----

TEST_F(SiteRulesTest, SiteOfACheckpointGoesOnAtItsStepAndSendsAgainWhatHasNoVerdict) {
  SiteFacts facts{.step = 8, .trained = {.tokens = 80, .steps = 8}, .sites = {"eu"}, .fragments = {}};
  facts.fragments.push_back({.version = 1, .applied = 1, .first = 0});
  facts.fragments.push_back({.version = 1,
                             .applied = 1,
                             .first = 0,
                             .sent = SentFacts{.base = 1, .amount = {80, 8}, .weight = {40, 4}, .admitted = false}});
  rules_->Restore(facts);
  EXPECT_TRUE(rules_->GetStanding().from_checkpoint);
  EXPECT_THAT(rules_->GetStanding().versions, ElementsAre(1, 1));
  Welcome(/*resumed=*/true);
  EXPECT_THAT(Take<action::Rejoin>(), IsEmpty());
  EXPECT_TRUE(rules_->GetStanding().from_checkpoint);
  Handle(event::Joining{});
  EXPECT_EQ(rules_->state().stay.stage, Stage::kTraining);
  EXPECT_EQ(rules_->state().step, 8);
  EXPECT_EQ(rules_->state().counts.entered, 1);
  const auto upload = TakeOne<action::Upload>();
  EXPECT_EQ(upload.base, 1);
  EXPECT_EQ(upload.weight.steps, 4);
  EXPECT_THAT(Take<action::FetchUpdate>(), SizeIs(2));
  EXPECT_FALSE(rules_->GetStanding().from_checkpoint);
  EXPECT_EQ(rules_->turn(), Turn::kGoOn);
}

TEST_F(SiteRulesTest, CheckpointOfAnotherNumberOfFragmentsIsRefused) {
  rules_->Restore({.step = 8, .fragments = {FragmentFacts{}}});
  Welcome(/*resumed=*/true);
  EXPECT_THAT(rules_->failure().message(), HasSubstr("the checkpoint: expected 2 fragments, as the run has, got 1"));
}

TEST_F(SiteRulesTest, CheckpointOfAStayThatIsOverJoinsAnewWithWhatItTrained) {
  rules_->Restore(
      {.step = 8, .trained = {80, 8}, .fragments = {{.version = 1, .applied = 1}, {.version = 1, .applied = 1}}});
  Handle(event::Joining{});
  Welcome(/*resumed=*/false);
  EXPECT_EQ(rules_->state().stay.stage, Stage::kReady) << "it has anchors, and follows the updates";
  EXPECT_THAT(Take<action::FetchUpdate>(), SizeIs(2));
  GiveEntry(/*step=*/8, /*version=*/1);
  EXPECT_EQ(rules_->state().stay.stage, Stage::kTraining);
  EXPECT_THAT(Take<action::MoveTheta>(), IsEmpty()) << "it keeps what it trained";
}

// ---- Contributions ----

TEST_F(SiteRulesTest, ContributionWeighsWhatWasTrainedSinceTheLastOneThatWasMerged) {
  Enter();
  for (core::Step step = 1; step <= 4; ++step) EXPECT_EQ(Step(step), Turn::kGoOn);
  const auto first = TakeOne<action::Upload>();
  EXPECT_EQ(first.tag.fragment, 1);
  EXPECT_EQ(first.base, 0);
  EXPECT_EQ(first.stay, stay_) << "of which the work is";
  EXPECT_EQ(first.weight.steps, 4);
  EXPECT_EQ(first.weight.tokens, 40);
  EXPECT_EQ(rules_->state().counts.sent, 1);
  Admit(first);
  EXPECT_EQ(Step(5), Turn::kWait) << "the update is due";
  now_us_ += 250'000;
  GiveUpdate(1, /*merged=*/0);
  EXPECT_EQ(rules_->turn(), Turn::kGoOn);
  EXPECT_DOUBLE_EQ(rules_->state().counts.stall_s, 0.25) << "since it entered";
  EXPECT_EQ(rules_->state().counts.merged, 1);
  Step(6);
  EXPECT_EQ(TakeOne<action::Upload>().weight.steps, 6);
  GiveUpdate(0, /*merged=*/0);
  EXPECT_EQ(Step(7), Turn::kGoOn);
  EXPECT_EQ(rules_->CompletedRounds(), 1);
  Step(8);
  const auto next = TakeOne<action::Upload>();
  EXPECT_EQ(next.base, 1);
  EXPECT_EQ(next.weight.steps, 4) << "of steps 5 to 8";
  EXPECT_EQ(next.weight.tokens, 40);
  Welcome();
  Handle(event::Joining{});
  GiveEntry(/*step=*/8, /*version=*/1);
  EXPECT_EQ(rules_->state().counts.entered, 2);
  EXPECT_EQ(rules_->state().counts.stall_s, 0);
}

TEST_F(SiteRulesTest, TokensThatAreReportedForTheSameStepAgainCountAndTheStepDoesNot) {
  Enter();
  Step(1, /*tokens=*/10);
  Step(1, /*tokens=*/5);
  EXPECT_EQ(rules_->state().trained.steps, 1);
  EXPECT_EQ(rules_->state().trained.tokens, 15);
}

TEST_F(SiteRulesTest, VerdictCountsForTheContributionThatItIsFor) {
  Enter();
  for (core::Step step = 1; step <= 4; ++step) Step(step);
  const auto upload = TakeOne<action::Upload>();
  const FragmentRules& fragment = rules_->state().fragments[1];
  Tag other_stay = upload.tag, other_ticket = upload.tag, other_fragment = upload.tag, none = upload.tag;
  --other_stay.stay;
  --other_ticket.ticket;
  other_fragment.fragment = 0;
  none.fragment = 2;
  for (const Tag& tag : {other_stay, other_ticket, other_fragment, none}) {
    Handle(event::VerdictGiven{tag, absl::OkStatus()});
    EXPECT_EQ(fragment.outgoing(), Outgoing::kSending);
  }
  Handle(event::VerdictGiven{upload.tag, absl::CancelledError("")});
  EXPECT_EQ(fragment.outgoing(), Outgoing::kSending);
  Admit(upload);
  EXPECT_EQ(fragment.outgoing(), Outgoing::kAdmitted);
}

TEST_F(SiteRulesTest, RefusedContributionIsResolvedAsNotMergedAndDamagedBytesFailTheSite) {
  Enter();
  for (core::Step step = 1; step <= 4; ++step) Step(step);
  Handle(event::VerdictGiven{TakeOne<action::Upload>().tag, absl::FailedPreconditionError("too old")});
  EXPECT_FALSE(TakeOne<action::Resolve>().merged);
  EXPECT_EQ(rules_->state().fragments[1].outgoing(), Outgoing::kNone);
  EXPECT_TRUE(rules_->failure().ok());
  Step(5);
  GiveUpdate(1, std::nullopt);
  Step(6);
  Handle(event::VerdictGiven{TakeOne<action::Upload>().tag, absl::DataLossError("chunk 3 is damaged")});
  EXPECT_EQ(rules_->failure(), absl::InternalError("chunk 3 is damaged"));
}

TEST_F(SiteRulesTest, PlaceThatDoesNotFitTheScheduleFailsAtTheSend) {
  Enter(/*step=*/4, /*version=*/0);  // whose version 0 of fragment 1 was to be sent at step 4
  for (core::Step step = 5; step <= 8 && rules_->failure().ok(); ++step) {
    Step(step);
    for (const auto& upload : Take<action::Upload>()) Admit(upload);
    GiveUpdate(0, 0);
  }
  EXPECT_THAT(rules_->failure().message(), HasSubstr("does not fit the schedule"));
}

TEST_F(SiteRulesTest, PlaceThatTheRunHasLeftBehindIsGivenUp) {
  Handle(event::Joining{});
  Welcome();
  GiveAnchors(1);  // that were made without it: its lease had ended before it heard of this entry
  GiveEntry(/*step=*/0, /*version=*/0);
  for (core::Step step = 1; step <= 4 && rules_->state().stay.stage == Stage::kTraining; ++step) Step(step);
  EXPECT_TRUE(rules_->failure().ok()) << rules_->failure();
  EXPECT_EQ(rules_->state().stay.stage, Stage::kLost);
  EXPECT_THAT(Take<action::Rejoin>(), SizeIs(1));
}

TEST_F(QuorumRulesTest, WhatIsDueWhileAnEarlierContributionIsUnresolvedIsSkippedAndCounted) {
  Enter();
  for (core::Step step = 1; step <= 4; ++step) EXPECT_EQ(Step(step), Turn::kGoOn);
  Admit(TakeOne<action::Upload>());
  for (core::Step step = 5; step <= 8; ++step) EXPECT_EQ(Step(step), Turn::kGoOn) << "nothing stalls";
  EXPECT_EQ(TakeOne<action::Upload>().tag.fragment, 0);
  EXPECT_EQ(rules_->state().counts.skipped, 1);
  EXPECT_EQ(rules_->state().counts.sent, 2);
}

TEST_F(QuorumRulesTest, ContributionThatIsDueWhileAnUpdateIsMovedInIsMadeAtTheNextStep) {
  Enter();
  for (core::Step step = 1; step <= 3; ++step) Step(step);
  Take<action::MoveTheta>();
  GiveUpdate(1, std::nullopt);
  moves_ = false;
  EXPECT_EQ(Step(4), Turn::kWait);
  EXPECT_THAT(Take<action::Upload>(), IsEmpty());
  EXPECT_EQ(TakeOne<action::MoveTheta>().how, action::MoveTheta::How::kStep);
  Handle(event::Moved{1});
  EXPECT_EQ(TakeOne<action::Upload>().base, 1);
  EXPECT_EQ(rules_->turn(), Turn::kGoOn);
}

}  // namespace
}  // namespace causeway::worker
