// Which codecs the rounds of a run have, where its config lets the coordinator choose them.
#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/run/chunk_source.h"
#include "server/run/run_model.h"
#include "tests/server/run/direct_coordinator.h"

namespace causeway::server {
namespace {

using core::CodecId;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

// Best first; a run begins with the last.
core::RunConfig ChoosingConfig() {
  core::RunConfig config = ConfigForTest();
  config.codec.allow_up = {CodecId::kFloat32, CodecId::kInt8, CodecId::kInt4};
  config.codec.up = CodecId::kInt4;
  config.codec.allow_down = {CodecId::kBfloat16, CodecId::kInt4};
  config.codec.down = CodecId::kInt4;
  return config;
}

// A site after that many steps of a tenth of a second, on a link of that rate both ways.
core::Progress ProgressAt(core::Step step, double bytes_per_s) {
  core::Progress progress{.step = step, .compute_s = static_cast<double>(step) / 10};
  progress.link = {.up_bytes_per_s = bytes_per_s, .down_bytes_per_s = bytes_per_s};
  return progress;
}

class RunCodecsTest : public testing::Test {
 protected:
  RunCodecsTest() { codecs_.SetMap(map_); }

  void Hear(const std::string& site, double bytes_per_s) {
    for (const core::Step step : {10, 20}) codecs_.Heard(site, ProgressAt(step, bytes_per_s));
  }

  const core::FragmentMap map_ = *core::BuildFragmentMap(ManifestForTest(), ChoosingConfig().sync);
  const core::RunSettings settings_{ChoosingConfig()};
  RunCodecs codecs_{settings_};
};

TEST_F(RunCodecsTest, ConfigThatChoosesItselfDecidesNothing) {
  const core::RunSettings settings(ConfigForTest());
  RunCodecs fixed(settings);
  fixed.SetMap(map_);
  EXPECT_FALSE(fixed.Decide(0, 0, {"a"}, 1));
  EXPECT_EQ(fixed.UpLeg(0).codec, ConfigForTest().codec.up);
  EXPECT_EQ(fixed.reason_up(), "");
  EXPECT_THAT(fixed.all(), ElementsAre(CodecId::kInt4));
}

TEST_F(RunCodecsTest, AChangeOfTheSettingsHoldsFromItsVersionsOn) {
  core::RunSettings settings(ConfigForTest());
  RunCodecs codecs(settings);
  codecs.SetMap(map_);
  core::RunConfig changed = ConfigForTest();
  changed.codec.up = CodecId::kInt8;
  changed.codec.down = CodecId::kSign;
  settings.Add({.number = 1, .step = 10, .versions = {2, 3}}, changed);
  const std::vector<RoundCodecs> expected = {{CodecId::kInt4, CodecId::kInt4, CodecId::kInt4},
                                             {CodecId::kInt4, CodecId::kInt4, CodecId::kInt8},
                                             {CodecId::kInt8, CodecId::kSign, CodecId::kInt8}};
  for (core::Version base = 0; base < 3; ++base) EXPECT_EQ(codecs.Decide(0, base, {"a"}, 1), expected[base]) << base;
  EXPECT_EQ(codecs.Decide(1, 2, {"a"}, 1), expected[1]) << "the other fragment is a version later";
  EXPECT_THAT(codecs.all(), testing::IsSupersetOf({CodecId::kInt4, CodecId::kInt8, CodecId::kSign}));
}

TEST_F(RunCodecsTest, SparseDownHasRoomForWhatTheRoundsContributionsHold) {
  core::RunConfig config = ConfigForTest();
  config.codec.up = CodecId::kTopk32;
  config.codec.allow_down.assign(std::rbegin(core::kTopkCodecs), std::rend(core::kTopkCodecs));
  config.codec.down = CodecId::kTopk;
  const core::RunSettings settings(config);
  RunCodecs sparse(settings);
  sparse.SetMap(map_);
  const std::vector<std::pair<int64_t, CodecId>> expected = {{1, CodecId::kTopk32},  {2, CodecId::kTopk},
                                                             {3, CodecId::kTopk128}, {8, CodecId::kTopk256},
                                                             {9, CodecId::kTopk512}, {40, CodecId::kTopk512}};
  for (const auto& [contributions, down] : expected) {
    EXPECT_EQ(sparse.Decide(0, 0, {"a"}, contributions), (RoundCodecs{CodecId::kTopk32, down, CodecId::kTopk32}));
  }
  EXPECT_EQ(sparse.down(), CodecId::kTopk512);
  EXPECT_EQ(sparse.reason_down(), "topk512, sparse: for 40 of topk32 in the last round");
  EXPECT_EQ(sparse.all(), (std::set(std::begin(core::kTopkCodecs), std::end(core::kTopkCodecs))));
}

TEST_F(RunCodecsTest, SiteHasToKnowEveryCodecThatMayCome) {
  EXPECT_EQ(codecs_.all(), (std::set{CodecId::kFloat32, CodecId::kBfloat16, CodecId::kInt8, CodecId::kInt4}));
}

TEST_F(RunCodecsTest, ContributionsOfAVersionKeepTheCodecThatTheRoundBeforeHasFixed) {
  Hear("a", 1e9);
  const std::optional<RoundCodecs> first = codecs_.Decide(0, 0, {"a"}, 1);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->up, CodecId::kInt4) << "version 0 has the cheapest";
  EXPECT_EQ(first->next_up, CodecId::kFloat32);
  EXPECT_EQ(first->down, CodecId::kBfloat16) << "the update's own codec needs no round of notice";
  EXPECT_EQ(codecs_.UpLeg(0).codec, CodecId::kFloat32);
  EXPECT_EQ(codecs_.UpLeg(1).codec, CodecId::kInt4) << "the other fragment's version is the one before";
  EXPECT_EQ(codecs_.Decide(0, 0, {"a"}, 1)->up, CodecId::kFloat32);
  EXPECT_EQ(codecs_.Decide(1, 0, {"a"}, 1)->up, CodecId::kInt4);
}

TEST_F(RunCodecsTest, SlowestActiveSiteCountsAndNoOther) {
  Hear("a", 1e9);
  Hear("b", 1);
  EXPECT_EQ(codecs_.Decide(0, 0, {"a", "b"}, 1)->next_up, CodecId::kInt4);
  EXPECT_THAT(codecs_.reason_up(), HasSubstr("slowest link (b"));
  EXPECT_EQ(codecs_.Decide(0, 0, {"a"}, 1)->next_up, CodecId::kFloat32);
  EXPECT_THAT(codecs_.reason_down(), HasSubstr("slowest link (a"));
}

TEST_F(RunCodecsTest, ChangesAreToldOnceAndWithWhatWasBefore) {
  EXPECT_TRUE(codecs_.Decide(0, 0, {"a"}, 1));
  EXPECT_THAT(codecs_.TakeChanges(), IsEmpty());
  Hear("a", 1e9);
  codecs_.Decide(0, 0, {"a"}, 1);
  EXPECT_THAT(codecs_.TakeChanges(),
              ElementsAre(HasSubstr("up: after int4 float32"), HasSubstr("down: after int4 bfloat16")));
  codecs_.Decide(0, 0, {"a"}, 1);
  EXPECT_THAT(codecs_.TakeChanges(), IsEmpty());
}

TEST_F(RunCodecsTest, RestartGoesOnWithTheCodecOfTheVersionAndARoundKnowsItsOwn) {
  codecs_.Restore(1, 0, CodecId::kInt8);
  EXPECT_EQ(codecs_.UpLeg(1).codec, CodecId::kInt8);
  codecs_.Restore(1, 0, std::nullopt);
  EXPECT_EQ(codecs_.UpLeg(1).codec, CodecId::kInt4);
  const RoundRecord chosen{.codecs = RoundCodecs{.up = CodecId::kInt8, .next_up = CodecId::kFloat32}};
  EXPECT_EQ(codecs_.UpLeg(chosen).codec, CodecId::kInt8);
  EXPECT_EQ(codecs_.UpLeg(RoundRecord{}).codec, CodecId::kInt4);
}

class ChosenCodecs : public testing::Test {
 protected:
  ChosenCodecs() {
    run_.Start();
    for (const core::Step step : {10, 20}) {
      for (const char* site : {"a", "b"}) {
        run_.Report(site, [step](v1::Progress& progress) {
          progress.set_step(step);
          progress.set_compute_s(static_cast<double>(step) / 10);
          progress.mutable_link()->set_up_bytes_per_s(1e9);
          progress.mutable_link()->set_down_bytes_per_s(1e9);
        });
      }
    }
  }

  void ContributeAs(CodecId codec, int64_t base) {
    for (const char* site : {"a", "b"}) {
      run_.Upload(HeaderOf(site, 0, base), ChunksOf(run_.map.fragment(0), codec, 1));
    }
  }

  DirectCoordinator run_{ChoosingConfig()};
};

TEST_F(ChosenCodecs, UpdateNamesItsCodecAndThatOfTheNextContributionAlsoAfterARestart) {
  ContributeAs(CodecId::kInt4, 0);
  const TakenDownload update = run_.TakeUpdate(0, 0);
  EXPECT_EQ(update.header.codec, static_cast<uint32_t>(CodecId::kBfloat16));
  EXPECT_EQ(update.header.up_codec, static_cast<uint32_t>(CodecId::kFloat32));
  EXPECT_EQ(run_.TakeAnchor(0, 1).header.up_codec, static_cast<uint32_t>(CodecId::kFloat32));
  EXPECT_THAT(run_.History("codec"), ElementsAre(HasSubstr("up: after int4 float32"), HasSubstr("down: after int4")));
  EXPECT_EQ(run_.coordinator->Status().codec.up, CodecId::kFloat32);
  EXPECT_EQ(run_.coordinator->Status().codec.down, CodecId::kBfloat16);
  ContributeAs(CodecId::kFloat32, 1);
  const TakenDownload second = run_.TakeUpdate(0, 1);
  run_.Settle();
  run_.Restart();
  EXPECT_EQ(run_.TakeUpdate(0, 1).digest, second.digest) << "decoded with the codec that each round had";
  EXPECT_EQ(run_.TakeUpdate(0, 1).chunks, second.chunks);
}

TEST_F(ChosenCodecs, ContributionOfTheCodecOfBeforeIsRefused) {
  ContributeAs(CodecId::kInt4, 0);
  run_.TakeUpdate(0, 0);
  const auto upload = run_.BeginUpload(HeaderOf("a", 0, 1));
  const auto chunks = ChunksOf(run_.map.fragment(0), CodecId::kInt4, 1);
  const absl::Status status = upload->contribution->Add(chunks[0]);
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
}

class WaitersTest : public ::testing::Test {
 protected:
  Waiter WaiterOf(const std::string& name) {
    return {owner_, [this, name](const absl::Status& status) {
              answers_.push_back(absl::StrCat(name, ": ", absl::StatusCodeToString(status.code())));
              messages_.push_back(std::string(status.message()));
            }};
  }

  std::shared_ptr<int> owner_ = std::make_shared<int>();
  std::vector<std::string> answers_, messages_;
};

TEST_F(WaitersTest, OnlyWhoWaitsForThatIsWokenAndOnce) {
  Waiters waiters;
  waiters.Add({1, 0, 4}, WaiterOf("a"));
  waiters.Add({1, 0, 5}, WaiterOf("b"));
  waiters.Add({1, 1, 4}, WaiterOf("c"));
  waiters.Wake({1, 0, 4});
  waiters.Wake({1, 0, 4});
  EXPECT_THAT(answers_, ElementsAre("a: OK"));
  waiters.WakeFragment(0);
  EXPECT_THAT(answers_, ElementsAre("a: OK", "b: OK"));
  waiters.WakeAll();
  EXPECT_THAT(answers_, ElementsAre("a: OK", "b: OK", "c: OK"));
  EXPECT_EQ(waiters.size(), 0u);
}

TEST_F(WaitersTest, NewGenerationAnswersWhoWaitsForAnEarlierOne) {
  Waiters waiters;
  waiters.Add({1, 0, 0}, WaiterOf("a"));
  waiters.Add({2, 0, 0}, WaiterOf("b"));
  waiters.BeginGeneration(2);
  EXPECT_THAT(answers_, ElementsAre("a: ABORTED"));
  EXPECT_THAT(messages_, ElementsAre("the model is generation 2 now; retry"));
  EXPECT_EQ(waiters.size(), 1u);
  waiters.WakeAll();
}

TEST_F(WaitersTest, WhoIsLetGoOfWithoutAnAnswerIsToldToRetry) {
  {
    Waiters waiters;
    waiters.Add({1, 0, 0}, WaiterOf("a"));
  }
  EXPECT_THAT(answers_, ElementsAre("a: ABORTED"));
  { const Waiter never_added = WaiterOf("b"); }
  EXPECT_THAT(answers_, ElementsAre("a: ABORTED"));
}

TEST_F(WaitersTest, WhoseOwnerIsGoneIsForgotten) {
  Waiters waiters;
  waiters.Add({1, 0, 0}, WaiterOf("a"));
  owner_ = std::make_shared<int>();
  waiters.Add({1, 0, 0}, WaiterOf("b"));
  EXPECT_EQ(waiters.size(), 1u);
  EXPECT_THAT(answers_, IsEmpty());
  waiters.WakeAll();
  EXPECT_THAT(answers_, ElementsAre("b: OK"));
}

TEST_F(WaitersTest, WhoIsWokenMayWaitAgainAtOnce) {
  Waiters waiters;
  waiters.Add({1, 0, 0}, Waiter(owner_, [&](const absl::Status&) { waiters.Add({1, 0, 0}, WaiterOf("again")); }));
  waiters.Wake({1, 0, 0});
  EXPECT_THAT(answers_, IsEmpty());
  EXPECT_EQ(waiters.size(), 1u);
}

// The figures that the coordinator shows of a run, each against what has happened.

class CoordinatorStatus : public testing::Test {
 protected:
  StatusSnapshot Now() const { return run_.coordinator->Status(); }
  std::shared_ptr<const LoggedRound> Round(int fragment, int64_t version) const {
    for (const auto& round : Now().rounds) {
      if (round->fragment == fragment && round->version == version) return round;
    }
    return nullptr;
  }

  DirectCoordinator run_;
};

TEST_F(CoordinatorStatus, BeforeTheSeedThereIsAModelAndNoFragment) {
  EXPECT_EQ(Now().parameters, 0);
  EXPECT_EQ(Now().state, "waiting");
  EXPECT_EQ(Now().run_id, "test");
  EXPECT_EQ(Now().epoch, 1u);
  EXPECT_EQ(Now().min_sites, 2);
  run_.Join("a");
  EXPECT_EQ(Now().parameters, 6100);
  EXPECT_THAT(Now().fragments, IsEmpty());
  EXPECT_EQ(run_.StatusOf("a").reason, "downloads the anchors");
  EXPECT_EQ(run_.StatusOf("a").contributing_reason, "joining: downloads the anchors");
}

TEST_F(CoordinatorStatus, FragmentsShowTheirRoundFromItsFirstContributionToTheMergedVersion) {
  run_.Start();
  ASSERT_THAT(Now().fragments, SizeIs(2));
  EXPECT_EQ(Now().fragments[0].state, "idle");
  EXPECT_EQ(Now().fragments[0].parameters + Now().fragments[1].parameters, 6100);
  run_.Contribute("a", 0);
  EXPECT_EQ(Now().fragments[0].state, "open");
  EXPECT_EQ(Now().fragments[0].reason, "waiting for b");
  EXPECT_THAT(Now().fragments[0].contributors, ElementsAre("a"));
  EXPECT_THAT(Now().fragments[1].contributors, IsEmpty());
  {
    const HeldJournal held(*run_.journal);
    run_.Contribute("b", 0);
    EXPECT_THAT(Now().fragments[0].contributors, IsEmpty());
    EXPECT_EQ(Now().fragments[0].committed.version, 0) << "decided, not merged";
  }
  const TakenDownload update = run_.TakeUpdate(0, 0);
  EXPECT_EQ(Now().fragments[0].committed.version, 1);
  EXPECT_EQ(Now().fragments[0].committed.digest, update.digest);
  EXPECT_EQ(Now().fragments[1].committed.version, 0);
  EXPECT_EQ(Now().rounds_decided, 1);
}

TEST_F(CoordinatorStatus, SiteShowsItsLastReportAndKeepsALossThatItDoesNotRepeat) {
  run_.Start();
  run_.Report("a", [](v1::Progress& progress) {
    progress.set_step(7);
    progress.set_tokens(700);
    progress.set_loss(2.5);
  });
  run_.Report("a", [](v1::Progress& progress) {
    progress.set_step(8);
    progress.set_loss(std::nan(""));
  });
  const SiteStatus status = run_.StatusOf("a");
  EXPECT_EQ(status.progress->step, 8);
  EXPECT_EQ(status.progress->loss, 2.5);
  EXPECT_TRUE(status.contributing);
  EXPECT_EQ(status.contributing_reason, "open rounds expect it");
  EXPECT_TRUE(std::isnan(run_.StatusOf("b").progress->loss));
}

TEST_F(CoordinatorStatus, MergedRoundShowsInItsSitesAndAMissedOneSaysWhy) {
  run_.Start();
  run_.clock.Set(1'000);
  run_.MergeRound(1, 0);
  SiteStatus b = run_.StatusOf("b");
  ASSERT_TRUE(b.last_merged);
  EXPECT_EQ(b.last_merged->fragment, 1);
  EXPECT_EQ(b.last_merged->version, 1);
  EXPECT_EQ(b.last_merged->unix_ms, 1'000);
  EXPECT_EQ(b.merged_weight, 0.5);
  EXPECT_FALSE(b.missed);
  run_.Leave("b");
  run_.Contribute("a", 1, 1);  // closes with a alone
  run_.TakeUpdate(1, 1);
  EXPECT_EQ(run_.StatusOf("a").merged_weight, 0.75);
  EXPECT_EQ(run_.StatusOf("b").merged_weight, 0.25);
  EXPECT_FALSE(run_.StatusOf("b").missed) << "it was gone";
}

// Both contribute ones: the mean is what each of them sent, and the first step's momentum is its gradient.
TEST_F(CoordinatorStatus, MergedRoundShowsItsOuterGradientAndHowEachContributionAgrees) {
  run_.Start();
  EXPECT_FALSE(run_.coordinator->Status().fragments.at(1).gradient);
  run_.MergeRound(1, 0);
  run_.MergeRound(1, 1);
  ASSERT_TRUE(run_.coordinator->Finish().ok());  // the log has the merges by then
  for (const char* name : {"a", "b"}) {
    const SiteStatus site = run_.StatusOf(name);
    ASSERT_TRUE(site.cosine) << name;
    EXPECT_EQ(site.cosine->fragment, 1);
    EXPECT_EQ(site.cosine->version, 2);
    EXPECT_NEAR(site.cosine->value, 1, 1e-3);
  }
  const StatusSnapshot snapshot = run_.coordinator->Status();
  EXPECT_FALSE(snapshot.fragments.at(0).gradient);
  const auto& gradient = snapshot.fragments.at(1).gradient;
  ASSERT_TRUE(gradient && gradient->norm && gradient->correlation);
  EXPECT_GT(*gradient->norm, 0);
  EXPECT_NEAR(*gradient->correlation, 1 / (1 + ConfigForTest().outer.momentum), 1e-3);  // r = 1
}

TEST_F(CoordinatorStatus, SiteThatEntersLaterMissesTheRoundThatWasDueBeforeAndSaysFromWhenItTakesPart) {
  run_.Start();
  run_.MergeRound(0, 0);  // fragment 1 is sent before it, so that its round was due before
  run_.Join("c");
  run_.Ready("c");
  run_.Settle();
  ASSERT_THAT(run_.peer["c"]->last().entry().first_versions(), ElementsAre(1, 1));
  run_.MergeRound(1, 0);
  const SiteStatus c = run_.StatusOf("c");
  ASSERT_TRUE(c.missed);
  EXPECT_EQ(c.missed->fragment, 1);
  EXPECT_EQ(c.missed->version, 1);
  EXPECT_EQ(c.missed->reason, "takes part from version 2 on");
  EXPECT_FALSE(run_.StatusOf("b").missed);
}

// In quorum mode, where one site is a quorum: a's contribution closes each round without b.
TEST(StatusOfARoundThatIsMissed, SaysWhatTheSiteWasDoing) {
  core::RunConfig config = ConfigForTest();
  config.sync.mode = core::SyncMode::kQuorum;
  config.membership.max_staleness = 10;
  DirectCoordinator run(config);
  run.Start();
  auto missed = [&, base = int64_t{0}]() mutable {
    run.Contribute("a", 0, base);
    run.TickAt(run.clock.NowMs() + 1'000);
    EXPECT_EQ(run.TakeUpdate(0, base++).header.merged, std::vector<std::string>{"a"});
    EXPECT_EQ(run.StatusOf("b").missed->version, base);
    return run.StatusOf("b").missed->reason;
  };
  EXPECT_THAT(missed(), StartsWith("it had not begun to send its contribution when the round closed: "));
  ASSERT_TRUE(run.BeginUpload(HeaderOf("b", 0)).ok());
  EXPECT_THAT(missed(), StartsWith("its contribution was on its way when the round closed: "));
  run.Report("b", [](v1::Progress& progress) { progress.set_completing(true); });
  EXPECT_EQ(missed(), "it has done all its steps");
  EXPECT_FALSE(run.StatusOf("a").missed);
  run.coordinator->Handle(input::Disconnected{run.peer["b"]});
  EXPECT_EQ(missed(), "its control stream was broken");
}

TEST_F(CoordinatorStatus, RoundIsLoggedFromItsFirstChunkToTheLastDownload) {
  run_.Start();
  run_.clock.Set(1'000);
  const v1::UploadHeader header = HeaderOf("a", 0);
  ASSERT_TRUE(run_.BeginUpload(header).ok());
  run_.clock.Set(1'500);
  run_.Contribute("a", 0);
  ASSERT_NE(Round(0, 1), nullptr);
  EXPECT_EQ(Round(0, 1)->arrivals.at(0).begun_unix_ms, 1'000);
  EXPECT_EQ(Round(0, 1)->arrivals.at(0).arrived_unix_ms, 1'500);
  EXPECT_FALSE(Round(0, 1)->decided_unix_ms);
  run_.clock.Set(2'000);
  run_.Contribute("b", 0);
  const TakenDownload update = run_.TakeUpdate(0, 0);
  ASSERT_TRUE(run_.coordinator->Finish().ok());  // the log has the merge by then
  EXPECT_EQ(Round(0, 1)->decided_unix_ms, 2'000);
  EXPECT_EQ(Round(0, 1)->digest, update.digest);
  EXPECT_EQ(Round(0, 1)->reason, "all 2 active sites have contributed");
  run_.clock.Set(2'700);
  v1::DownloadRequest request = DirectCoordinator::RequestOf("b", 0);
  request.set_update_base(0);
  run_.coordinator->Taken(request, /*begun_ms=*/2'400);
  ASSERT_THAT(Round(0, 1)->downloads, SizeIs(1));
  EXPECT_EQ(Round(0, 1)->downloads[0].site, "b");
  EXPECT_EQ(Round(0, 1)->downloads[0].begun_unix_ms, 2'400);
  EXPECT_EQ(Round(0, 1)->downloads[0].taken_unix_ms, 2'700);
  request = DirectCoordinator::RequestOf("stranger", 0);
  request.set_update_base(0);
  run_.coordinator->Taken(request, 2'400);
  request = DirectCoordinator::RequestOf("a", 0);
  request.set_anchor_version(0);
  run_.coordinator->Taken(request, 2'400);
  EXPECT_THAT(Round(0, 1)->downloads, SizeIs(1)) << "neither a stranger's nor an anchor's is of the round";
}

TEST_F(CoordinatorStatus, ContributionThatIsGivenUpIsLoggedNoMore) {
  run_.Start();
  ASSERT_TRUE(run_.BeginUpload(HeaderOf("b", 0)).ok());
  run_.Contribute("a", 0);
  ASSERT_THAT(Round(0, 1)->arrivals, SizeIs(2));
  run_.Leave("b");
  run_.TakeUpdate(0, 0);
  ASSERT_THAT(Round(0, 1)->arrivals, SizeIs(1));
  EXPECT_EQ(Round(0, 1)->arrivals[0].site, "a");
}

TEST_F(CoordinatorStatus, SiteThatDrainsOrIsSilentSaysSo) {
  run_.Start();
  ASSERT_TRUE(run_.coordinator->Ask(input::Drain{"a"}).ok());
  EXPECT_EQ(run_.StatusOf("a").state, core::SiteState::kDraining);
  EXPECT_EQ(run_.StatusOf("a").contributing_reason, "it leaves after what it has in flight");
  run_.coordinator->Handle(input::Disconnected{run_.peer["b"]});
  EXPECT_EQ(run_.StatusOf("b").contributing_reason,
            "its control stream is broken; rounds wait for it until its lease ends");
  EXPECT_TRUE(run_.StatusOf("b").contributing);
}

TEST_F(CoordinatorStatus, BytesCountForTheirSiteAndTheirRateIsSampled) {
  run_.Start();
  run_.TickAt(300);
  const int64_t before = run_.StatusOf("a").up_bytes;
  for (const char* site : {"a", "stranger"}) {
    v1::DownloadRequest request = DirectCoordinator::RequestOf(site, 0);
    request.set_update_base(0);
    run_.BeginDownload(request, [] {})->meters->up.Add(5'000);
  }
  EXPECT_EQ(run_.StatusOf("a").up_bytes, before + 5'000);
  EXPECT_EQ(run_.StatusOf("b").up_bytes, 0);
  EXPECT_EQ(run_.StatusOf("a").up_bytes_per_s, 0);
  run_.TickAt(1'300);
  EXPECT_GT(run_.StatusOf("a").up_bytes_per_s, 0);
  EXPECT_EQ(run_.StatusOf("b").up_bytes_per_s, 0);
  EXPECT_EQ(run_.StatusOf("a").joined_s, 1.3);
  EXPECT_EQ(Now().uptime_s, 1.3);
}

TEST_F(CoordinatorStatus, BoardHasAPageFromTheStartAndANewOneEveryQuarterOfASecond) {
  ASSERT_NE(run_.board.Status(), nullptr);
  EXPECT_THAT(*run_.board.Status(), HasSubstr("\"waiting\""));
  run_.Start();
  run_.TickAt(1'000);
  EXPECT_THAT(*run_.board.Status(),
              AllOf(HasSubstr("\"state\":\"training\",\"reason\":\"\","), HasSubstr("\"uptime_s\":1,")));
  ASSERT_TRUE(run_.coordinator->Ask(input::ChangeRun{v1::ChangeRunRequest::PAUSE}).ok());
  run_.TickAt(1'249);
  EXPECT_THAT(*run_.board.Status(), Not(HasSubstr("\"paused\"")));
  run_.TickAt(1'250);
  EXPECT_THAT(*run_.board.Status(), HasSubstr("\"state\":\"paused\",\"reason\":\"paused by an operator\""));
}

}  // namespace
}  // namespace causeway::server
