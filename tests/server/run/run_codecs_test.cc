// Which codecs the rounds of a run have, where its config lets the coordinator choose them.
#include "server/run/run_codecs.h"

#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/run/waiters.h"
#include "tests/server/run/direct_coordinator.h"

namespace causeway::server {
namespace {

using core::CodecId;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

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
  const auto upload = run_.coordinator->transfers().BeginUpload(HeaderOf("a", 0, 1));
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

}  // namespace
}  // namespace causeway::server
