// Updates, anchors that are lost, evaluation, pauses and the end of the run, as a site's rules alone decide them.
#include <gmock/gmock-more-matchers.h>

#include "tests/worker/site/site_rules_for_test.h"

namespace causeway::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using How = action::MoveTheta::How;
using Turn = SiteRules::Turn;

class UpdatesTest : public SiteRulesTest {
 protected:
  explicit UpdatesTest(core::SyncMode mode = core::SyncMode::kSynchronous) : SiteRulesTest(mode) {}

  // Takes steps up to this one; each contribution is admitted, each update has it and is here in time.
  void Train(core::Step through, bool evaluates = false) {
    for (core::Step step = rules_->state().step + 1; step <= through; ++step) {
      Step(step);
      for (const auto& upload : Take<action::Upload>()) {
        Admit(upload);
        GiveUpdate(upload.tag.fragment, upload.base, evaluates);
      }
      ASSERT_EQ(rules_->turn(), Turn::kGoOn) << "step " << step;
    }
  }
  const FragmentRules& fragment(core::FragmentId p) const { return rules_->state().fragments[p]; }
};

class QuorumUpdatesTest : public UpdatesTest {
 protected:
  QuorumUpdatesTest() : UpdatesTest(core::SyncMode::kQuorum) {}
};

TEST_F(UpdatesTest, UpdateWithTheContributionIsMixedInAtItsStepAndOneWithoutItMovesTheta) {
  Enter();
  Take<action::MoveTheta>();
  Train(4);
  EXPECT_THAT(Take<action::MoveTheta>(), IsEmpty()) << "τ = 1";
  Train(5);
  EXPECT_EQ(TakeOne<action::MoveTheta>().how, How::kMix);
  Step(6);
  Admit(TakeOne<action::Upload>());
  GiveUpdate(0, std::nullopt);
  EXPECT_FALSE(Take<action::TakeUpdate>().back().resolve.value()) << "it can be in this round alone";
  Step(7);
  EXPECT_EQ(TakeOne<action::MoveTheta>().how, How::kStep);
}

TEST_F(UpdatesTest, UpdateToAnotherVersionThanTheNextFailsTheSite) {
  Enter();
  const auto fetch = Take<action::FetchUpdate>().front();
  Handle(event::Fetched{.tag = fetch.tag, .version = fetch.base + 2});
  EXPECT_THAT(rules_->failure().message(), HasSubstr("expected an update to version 1, got one to 2"));
}

TEST_F(UpdatesTest, UpdateThatIsCancelledOrOfAnEarlierQuestionIsNoUpdate) {
  Enter();
  const auto fetch = Take<action::FetchUpdate>().front();
  Handle(event::Fetched{.tag = fetch.tag, .status = absl::CancelledError("")});
  Tag earlier = fetch.tag;
  --earlier.ticket;
  Handle(event::Fetched{.tag = earlier, .version = 1});
  EXPECT_FALSE(rules_->Awaits({.tag = earlier}));
  EXPECT_FALSE(rules_->Awaits({.tag = {.fragment = 7}}));
  EXPECT_EQ(fragment(fetch.tag.fragment).incoming(), Incoming::kAwaiting);
  EXPECT_TRUE(rules_->failure().ok());
  EXPECT_TRUE(rules_->Awaits({.tag = fetch.tag}));
}

TEST_F(UpdatesTest, DownloadThatFailsForGoodFailsTheSite) {
  Enter();
  Handle(event::Fetched{.tag = Take<action::FetchUpdate>().front().tag, .status = absl::InvalidArgumentError("words")});
  EXPECT_EQ(rules_->failure(), absl::InternalError("words"));
}

TEST_F(UpdatesTest, SiteThatIsBehindTheUpdatesThatAreKeptGivesUpItsPlaceAndKeepsWhatItTrained) {
  Enter();
  Train(5);
  Take<action::MoveTheta>();
  const auto fetches = Take<action::FetchUpdate>();
  ASSERT_THAT(fetches, SizeIs(2));
  Handle(event::Fetched{.tag = fetches[0].tag, .status = absl::NotFoundError("gone")});
  EXPECT_EQ(rules_->state().stay.stage, Stage::kLost);
  EXPECT_THAT(Take<action::Rejoin>(), SizeIs(1));
  EXPECT_EQ(rules_->turn(), Turn::kJoin);
  Handle(event::Joining{});
  Welcome();
  EXPECT_EQ(rules_->state().stay.number, 2);
  const auto asked = TakeOne<action::FetchAnchor>();
  EXPECT_EQ(asked.tag.fragment, fetches[0].tag.fragment);
  Handle(event::Fetched{.tag = asked.tag, .version = 4});
  EXPECT_EQ(TakeOne<action::MoveTheta>().how, How::kAnchor);
  EXPECT_EQ(fragment(asked.tag.fragment).facts().version, 4);
  EXPECT_EQ(fragment(asked.tag.fragment).facts().applied, 4);
}

TEST_F(UpdatesTest, AnchorThatDiffersFromTheCoordinatorsIsTakenAnew) {
  Enter();
  for (core::Step step = 1; step <= 4; ++step) Step(step);
  Admit(TakeOne<action::Upload>());
  Take<action::Say>();
  mismatch_ = "digest 1, expected 2";
  GiveUpdate(1, /*merged=*/0);
  EXPECT_EQ(rules_->state().stay.stage, Stage::kLost);
  EXPECT_FALSE(fragment(1).anchored());
  EXPECT_THAT(TakeOne<action::Say>().text, HasSubstr("fragment 1: digest 1, expected 2; takes the anchor"));
}

TEST_F(UpdatesTest, ContributionOfAnEarlierStayIsResolvedByWhatTheCoordinatorHasAdmitted) {
  for (const core::Version admitted : {-1, 0}) {
    Make();
    Enter();
    for (core::Step step = 1; step <= 4; ++step) Step(step);
    Take<action::Upload>();
    Handle(event::Welcomed{.num_fragments = 2, .last_admitted = {-1, admitted}});
    Handle(event::Joining{});
    const auto resolved = Take<action::Resolve>();
    if (admitted < 0) {
      ASSERT_THAT(resolved, SizeIs(1));
      EXPECT_FALSE(resolved[0].merged);
      EXPECT_EQ(fragment(1).outgoing(), Outgoing::kNone);
    } else {
      EXPECT_THAT(resolved, IsEmpty());
      EXPECT_EQ(fragment(1).outgoing(), Outgoing::kAdmitted);
    }
  }
}

TEST_F(UpdatesTest, SiteOfWhichAnUnknownContributionWasMergedStartsFromTheAnchor) {
  Enter();
  Train(5);
  Take<action::ForgetResidual>();
  Handle(event::Welcomed{.num_fragments = 2, .last_admitted = {-1, 7}});
  Handle(event::Joining{});
  EXPECT_EQ(TakeOne<action::ForgetResidual>().fragment, 1);
  EXPECT_FALSE(fragment(1).keeps_local());
  EXPECT_TRUE(fragment(0).keeps_local());
  GiveEntry(/*step=*/5, /*version=*/1);
  GiveUpdate(0, std::nullopt);
  EXPECT_EQ(rules_->state().stay.stage, Stage::kTraining);
  EXPECT_EQ(fragment(1).facts().resolved, 7);
}

TEST_F(UpdatesTest, AnotherLineageVoidsWhatTheSiteHolds) {
  Enter();
  Train(5);
  Take<action::ForgetResidual>();
  Handle(event::Welcomed{.same_lineage = false, .lineage = "22", .num_fragments = 2, .last_admitted = {-1, -1}});
  EXPECT_EQ(rules_->Facts().lineage, "22");
  Handle(event::Joining{});
  EXPECT_THAT(Take<action::FetchAnchor>(), SizeIs(2));
  EXPECT_THAT(Take<action::ForgetResidual>(), SizeIs(2));
  EXPECT_FALSE(fragment(0).keeps_local());
}

TEST(FragmentRules, AnotherLineageVoidsAnAnchorWhereverItIs) {
  FragmentRules fragment(0);
  fragment.Void();
  EXPECT_EQ(fragment.incoming(), Incoming::kNone);
  fragment.AskForAnchor(1);
  fragment.Void();
  EXPECT_EQ(fragment.incoming(), Incoming::kAnchoring) << "the site asks again when it settles";
  fragment.Arrived({.version = 3});
  fragment.Place();
  fragment.Void();
  EXPECT_EQ(fragment.incoming(), Incoming::kPlacing) << "it is being decoded";
  fragment.AnchorPlaced();
  EXPECT_EQ(fragment.incoming(), Incoming::kNone);
  fragment.AskForAnchor(2);
  fragment.Arrived({.version = 3});
  fragment.Place();
  fragment.AnchorPlaced();
  EXPECT_TRUE(fragment.anchored());
  fragment.AskForUpdate(2);
  fragment.Void();
  EXPECT_EQ(fragment.incoming(), Incoming::kNone);
}

// ---- Evaluation ----

TEST_F(UpdatesTest, FirstSiteOfANewRunEvaluatesAtTheStart) {
  Enter();
  EXPECT_THAT(Take<action::Evaluate>(), SizeIs(1));
  sites_ = {"ap", "eu"};
  Make();
  Enter();
  EXPECT_THAT(Take<action::Evaluate>(), IsEmpty());
  sites_ = {"eu"};
  Make();
  Enter(/*step=*/6, /*version=*/1);
  EXPECT_THAT(Take<action::Evaluate>(), IsEmpty());
}

TEST_F(UpdatesTest, SiteThatTheUpdateNamesEvaluatesWhenAllFragmentsHaveHadThatManyRounds) {
  config_.eval.every_rounds = 2;
  Make();
  Enter();
  Take<action::Evaluate>();
  Train(9, /*evaluates=*/true);
  EXPECT_THAT(Take<action::Evaluate>(), IsEmpty()) << "fragment 0 has had one round";
  Train(11, /*evaluates=*/true);
  EXPECT_THAT(Take<action::Evaluate>(), SizeIs(1));
  Train(15, /*evaluates=*/true);
  EXPECT_THAT(Take<action::Evaluate>(), IsEmpty()) << "three rounds";
  Train(19, /*evaluates=*/false);
  EXPECT_THAT(Take<action::Evaluate>(), IsEmpty()) << "another site is named";
}

TEST_F(UpdatesTest, WithDataOfItsOwnEachSiteEvaluates) {
  config_.eval.every_rounds = 1;
  config_.data.mode = core::DataMode::kOwn;
  sites_ = {"ap", "eu"};
  Make();
  Enter();
  EXPECT_THAT(Take<action::Evaluate>(), SizeIs(1));
  Train(7);
  EXPECT_THAT(Take<action::Evaluate>(), SizeIs(1));
}

TEST_F(UpdatesTest, WithoutAnIntervalThereIsNoEvaluationAfterTheStart) {
  config_.eval.every_rounds = 0;
  Make();
  Enter();
  Take<action::Evaluate>();
  Train(15, /*evaluates=*/true);
  EXPECT_THAT(Take<action::Evaluate>(), IsEmpty());
}

// ---- Pauses, the end ----

TEST_F(UpdatesTest, SiteHoldsAfterItsStepWhileTheRunIsPausedAndSaysSoOnce) {
  Enter();
  Step(1);
  Take<action::Say>();
  Handle(event::Held{true});
  EXPECT_EQ(rules_->turn(), Turn::kGoOn) << "its step is taken";
  EXPECT_EQ(Step(2), Turn::kWait);
  EXPECT_THAT(TakeOne<action::Say>().text, HasSubstr("holds"));
  Handle(event::Ticked{});
  EXPECT_THAT(Take<action::Say>(), IsEmpty());
  Handle(event::Held{false});
  EXPECT_EQ(rules_->turn(), Turn::kGoOn);
}

TEST_F(UpdatesTest, SiteThatIsAskedToStopSaysSoUnlessItHasFailed) {
  Enter();
  Handle(event::StopRequested{});
  EXPECT_EQ(rules_->turn(), Turn::kFailed);
  EXPECT_EQ(rules_->failure(), absl::CancelledError("asked to stop"));
  Handle(event::Failed{absl::InternalError("first")});
  Handle(event::Failed{absl::InternalError("second")});
  EXPECT_EQ(rules_->failure(), absl::InternalError("first"));
}

TEST_F(UpdatesTest, AtTheEndTheSiteWaitsForTheRoundsThatItHasSentToAndEvaluatesIfItIsNamed) {
  for (const bool evaluates : {true, false}) {
    Make();
    Enter();
    Take<action::Evaluate>();
    for (core::Step step = 1; step <= 4; ++step) Step(step);
    Admit(TakeOne<action::Upload>());
    Take<action::MoveTheta>();
    Handle(event::TrainingDone{});
    EXPECT_EQ(rules_->turn(), Turn::kWait);
    GiveUpdate(1, /*merged=*/0, evaluates);
    EXPECT_EQ(rules_->turn(), Turn::kDone);
    EXPECT_THAT(Take<action::MoveTheta>(), IsEmpty()) << "θ stays as it is";
    EXPECT_THAT(Take<action::Evaluate>(), SizeIs(evaluates ? 1 : 0));
    EXPECT_EQ(fragment(1).facts().applied, 1);
  }
}

TEST_F(UpdatesTest, OnlyASiteThatTrainsCompletesAndCanBeSaved) {
  Handle(event::Joining{});
  Welcome();
  EXPECT_FALSE(rules_->CanBeSaved());
  Handle(event::TrainingDone{});
  EXPECT_EQ(rules_->state().stay.stage, Stage::kAnchoring);
  GiveAnchors(0);
  GiveEntry(0, 0);
  EXPECT_TRUE(rules_->CanBeSaved());
}

TEST_F(QuorumUpdatesTest, UpdatesThatArriveAreMovedInOneAStepAndTheContributionStaysUntilOneHasIt) {
  Enter();
  Take<action::MoveTheta>();
  for (core::Step step = 1; step <= 4; ++step) Step(step);
  Admit(TakeOne<action::Upload>());
  GiveUpdate(1, std::nullopt);
  EXPECT_FALSE(TakeOne<action::TakeUpdate>().resolve.has_value());
  EXPECT_EQ(fragment(1).outgoing(), Outgoing::kAdmitted);
  EXPECT_THAT(Take<action::MoveTheta>(), IsEmpty()) << "at the end of a step";
  Step(5);
  EXPECT_EQ(TakeOne<action::MoveTheta>().how, How::kStep);
  GiveUpdate(1, /*merged=*/0);
  EXPECT_TRUE(TakeOne<action::TakeUpdate>().resolve.value());
  Step(6);
  EXPECT_EQ(TakeOne<action::MoveTheta>().how, How::kMix);
  EXPECT_EQ(fragment(1).outgoing(), Outgoing::kNone);
  EXPECT_EQ(fragment(1).facts().resolved, 0);
}

TEST_F(QuorumUpdatesTest, AtTheEndASiteWaitsForItsContributionsAlone) {
  Enter();
  for (core::Step step = 1; step <= 4; ++step) Step(step);
  Admit(TakeOne<action::Upload>());
  Handle(event::TrainingDone{});
  EXPECT_EQ(rules_->turn(), Turn::kWait);
  GiveUpdate(0, std::nullopt);
  EXPECT_EQ(rules_->turn(), Turn::kWait);
  GiveUpdate(1, /*merged=*/0);
  EXPECT_EQ(rules_->turn(), Turn::kDone);
}

}  // namespace
}  // namespace causeway::worker
