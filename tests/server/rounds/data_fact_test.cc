// Which data a site may join a run with.
#include "server/rounds/data_fact.h"

#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

namespace causeway::server {
namespace {

using core::DataFingerprint;
using core::DataMode;
using core::SiteData;
using core::SiteId;
using core::SiteState;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr DataFingerprint kEnglish{1'234, 0xab}, kFrench{1'234'567, 0xcd}, kTail{99, 0xef};

class DataFactTest : public ::testing::Test {
 protected:
  DataFact own_{{.mode = DataMode::kOwn}, {}}, shared_{{.mode = DataMode::kShared}, {}};
  core::RoundState rounds_;

  void SetUp() override { rounds_.started = true; }

  // The words of the refusal; empty if the site is in.
  std::string Join(DataFact& fact, const SiteId& site, const SiteData& data) {
    const absl::Status status = fact.CheckJoin(site, data, rounds_);
    if (!status.ok()) return std::string(status.message());
    fact.Declare(site, data, rounds_);
    rounds_.sites[site].state = SiteState::kTraining;
    return "";
  }
  void Leave(const SiteId& site) { rounds_.sites[site].state = SiteState::kGone; }
};

TEST_F(DataFactTest, SharedRefusesOtherDataThanTheFirstSitesNamingBoth) {
  EXPECT_EQ(Join(shared_, "eu", {.training = kEnglish}), "");
  EXPECT_EQ(Join(shared_, "asia", {.training = kEnglish}), "");
  EXPECT_EQ(
      Join(shared_, "us", {.training = kFrench}),
      "site us: data of 1,234,567 tokens, fingerprint 00000000000000cd; site asia's has 1,234 tokens, fingerprint "
      "00000000000000ab: data.mode shared expects the same data: each site's log names the files that it reads; to "
      "train "
      "on different data, data.mode: own");
}

TEST_F(DataFactTest, SharedKeepsTheRunsDataWhoeverLeavesAndWhateverFileASiteComesBackWith) {
  Join(shared_, "eu", {.training = kEnglish});
  Leave("eu");
  EXPECT_THAT(Join(shared_, "us", {.training = kFrench}), HasSubstr("site eu's has 1,234 tokens"));
  EXPECT_THAT(Join(shared_, "eu", {.training = kFrench}), HasSubstr("before it had 1,234 tokens"));
  EXPECT_EQ(Join(shared_, "eu", {.training = kEnglish}), "");
}

TEST_F(DataFactTest, SharedForgetsAFileThatNoSiteIsLeftOfBeforeTheRunBegins) {
  rounds_.started = false;
  Join(shared_, "eu", {.training = kEnglish});
  EXPECT_THAT(Join(shared_, "us", {.training = kFrench}), HasSubstr("site eu's has"));
  Leave("eu");
  EXPECT_EQ(Join(shared_, "us", {.training = kFrench}), "");
  EXPECT_THAT(Join(shared_, "eu", {.training = kEnglish}), HasSubstr("site us's has"));
  EXPECT_EQ(Join(shared_, "eu", {.training = kFrench}), "");
}

TEST_F(DataFactTest, SharedTakesASiteOfARunBeforeThereWereFingerprintsAsItIs) {
  rounds_.sites["eu"].state = rounds_.sites["us"].state = SiteState::kTraining;
  EXPECT_EQ(Join(shared_, "eu", {.training = kEnglish}), "");
  EXPECT_EQ(Join(shared_, "us", {.training = kFrench}), "") << "it has trained on that all along";
  EXPECT_EQ(Join(shared_, "us", {.training = kFrench}), "");
  EXPECT_THAT(Join(shared_, "us", {.training = kEnglish}), HasSubstr("before it had 1,234,567 tokens"));
  EXPECT_EQ(Join(shared_, "asia", {.training = kFrench}), "");
  EXPECT_THAT(Join(shared_, "oslo", {.training = kTail}), HasSubstr("site asia's has 1,234,567 tokens"));
}

TEST_F(DataFactTest, OwnRefusesEqualDataOfTwoSitesNamingBoth) {
  EXPECT_EQ(Join(own_, "eu", {.training = kEnglish}), "");
  EXPECT_EQ(Join(own_, "us", {.training = kFrench}), "");
  EXPECT_EQ(Join(own_, "asia", {.training = kEnglish}),
            "site asia: data of 1,234 tokens, fingerprint 00000000000000ab, and site eu has the same: data.mode own "
            "expects other data in each site; use data.mode: shared, or data.allow_equal: true if that is meant");
  EXPECT_EQ(Join(own_, "eu", {.training = kEnglish}), "") << "it is back";
}

TEST_F(DataFactTest, OwnAllowsEqualDataWhereTheRunSaysSo) {
  DataFact fact({.mode = DataMode::kOwn, .allow_equal = true}, {});
  EXPECT_EQ(Join(fact, "eu", {.training = kEnglish}), "");
  EXPECT_EQ(Join(fact, "us", {.training = kEnglish}), "");
}

TEST_F(DataFactTest, OwnTakesANewFileOfASiteAndTheFileOfOneThatIsGone) {
  Join(own_, "eu", {.training = kEnglish});
  EXPECT_EQ(Join(own_, "eu", {.training = kFrench}), "");
  EXPECT_EQ(Join(own_, "us", {.training = kEnglish}), "");
  Leave("us");
  EXPECT_EQ(Join(own_, "asia", {.training = kEnglish}), "");
  EXPECT_THAT(Join(own_, "us", {.training = kEnglish}), HasSubstr("site asia has the same"));
}

TEST_F(DataFactTest, NameThatIsGivenUpTakesItsDataAlongUnlessNoOtherSiteSaysWhatAllShare) {
  Join(own_, "eu", {.training = kEnglish});
  EXPECT_TRUE(own_.Forget("eu"));
  EXPECT_THAT(own_.known(), IsEmpty());
  EXPECT_FALSE(own_.Forget("eu"));
  Join(shared_, "eu", {.training = kEnglish});
  Join(shared_, "us", {.training = kEnglish});
  EXPECT_TRUE(shared_.Forget("eu"));
  EXPECT_FALSE(shared_.Forget("us"));
  EXPECT_THAT(Join(shared_, "asia", {.training = kFrench}), HasSubstr("data.mode shared expects the same"));
}

TEST_F(DataFactTest, ASiteThatSaysNothingIsTakenInBothAndChangesNothing) {
  for (DataFact* fact : {&own_, &shared_}) {
    Join(*fact, "eu", {.training = kEnglish});
    EXPECT_EQ(Join(*fact, "script", {}), "");
    EXPECT_EQ(Join(*fact, "eu", {}), "");
    EXPECT_EQ(fact->known(), (core::DataOfSites{{"eu", {.training = kEnglish}}}));
  }
}

TEST_F(DataFactTest, OwnHeldOutFilesAreTheSameInAllSitesThatHaveOne) {
  Join(own_, "eu", {.training = kEnglish, .held_out = kTail});
  EXPECT_EQ(
      Join(own_, "us", {.training = kFrench, .held_out = kEnglish}),
      "site us: held-out data of 1,234 tokens, fingerprint 00000000000000ab; site eu's has 99 tokens, fingerprint "
      "00000000000000ef: losses compare on one file alone; give all sites the same --held_out");
  EXPECT_EQ(Join(own_, "us", {.training = kFrench, .held_out = kTail}), "");
  EXPECT_EQ(Join(own_, "eu", {.training = kEnglish}), "") << "it need not have one";
}

TEST_F(DataFactTest, LossOfTheRunIsOfSharedTextOrOfAHeldOutFileAndElseThereIsNone) {
  EXPECT_TRUE(shared_.EvaluatesForAll("eu"));
  EXPECT_EQ(shared_.WhyNoLoss(), "");
  Join(own_, "eu", {.training = kEnglish});
  EXPECT_FALSE(own_.EvaluatesForAll("eu"));
  EXPECT_THAT(own_.WhyNoLoss(), HasSubstr("each site evaluates on the tail of its own data"));
  Join(own_, "us", {.training = kFrench, .held_out = kTail});
  EXPECT_TRUE(own_.EvaluatesForAll("us"));
  EXPECT_FALSE(own_.EvaluatesForAll("eu"));
  EXPECT_EQ(own_.WhyNoLoss(), "");
}

TEST_F(DataFactTest, DeclaringTellsWhatIsNew) {
  EXPECT_TRUE(own_.Declare("eu", {.training = kEnglish}, rounds_));
  EXPECT_FALSE(own_.Declare("eu", {.training = kEnglish}, rounds_));
  EXPECT_TRUE(own_.Declare("eu", {.training = kFrench}, rounds_));
}

}  // namespace
}  // namespace causeway::server
