// The model of a run: who may say what it is, when it is another one, and what a number that is named means.
#include "server/rounds/model_fact.h"

#include <gmock/gmock-matchers.h>
#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include "core/fragment_map.h"

namespace causeway::server {
namespace {

using core::DataFingerprint;
using core::DataMode;
using core::SiteData;
using core::SiteId;
using core::SiteState;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

core::FragmentMap MapOf(int64_t rows) {
  return *core::BuildFragmentMap(
      {{"a", {rows, 2}, core::TensorKind::kMatrix, 0}, {"b", {3, 2}, core::TensorKind::kMatrix, 1}}, 2,
      core::FragmentAssignment::kStrided);
}

absl::StatusCode Named(const ModelFact& model, std::optional<uint64_t> generation) {
  return model.CheckGeneration(generation).code();
}

class ModelFactTest : public ::testing::Test {
 protected:
  const core::FragmentMap map_ = MapOf(4), other_ = MapOf(5);
  ModelFact model_;

  absl::StatusOr<bool> Follow(std::optional<uint64_t> generation, const std::optional<core::FragmentMap>& map,
                              bool trained = false) {
    return model_.Follow(generation, map, trained);
  }
  void MakeSeeded() {
    model_.Save();
    model_.Seeded();
  }
};

TEST_F(ModelFactTest, NothingIsKnownBeforeTheFirstJoiner) {
  EXPECT_FALSE(model_.known());
  EXPECT_FALSE(model_.stays());
  EXPECT_EQ(Named(model_, std::nullopt), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Named(model_, 1), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(model_.CheckManifest(map_.manifest(), /*any_site_in=*/true).ok());
}

TEST_F(ModelFactTest, FirstJoinerDeclaresAndARepeatChangesNothing) {
  EXPECT_TRUE(model_.Declare(map_));
  EXPECT_EQ(model_.state(), ModelState::kDeclared);
  EXPECT_EQ(model_.generation(), 1u);
  model_.ExpectSeedFrom("a", "1");
  EXPECT_FALSE(model_.Declare(map_));
  EXPECT_EQ(model_.generation(), 1u);
  EXPECT_EQ(model_.seeder(), "a");
}

TEST_F(ModelFactTest, NumberThatIsNamedIsAbsentEqualStaleOrToCome) {
  model_.Declare(map_);
  model_.Declare(other_);
  EXPECT_EQ(Named(model_, std::nullopt), absl::StatusCode::kOk);
  EXPECT_EQ(Named(model_, 2), absl::StatusCode::kOk);
  EXPECT_EQ(Named(model_, 1), absl::StatusCode::kAborted);
  EXPECT_EQ(model_.CheckGeneration(1).message(), "the model is generation 2 now; retry");
  EXPECT_EQ(Named(model_, 3), absl::StatusCode::kUnavailable);
}

TEST_F(ModelFactTest, AnotherModelIsTakenOnlyWithNoSiteInAndBeforeTheSeed) {
  model_.Declare(map_);
  model_.ExpectSeedFrom("a", "1");
  EXPECT_THAT(std::string(model_.CheckManifest(other_.manifest(), true).message()), HasSubstr("expected a"));
  EXPECT_TRUE(model_.CheckManifest(map_.manifest(), true).ok());
  ASSERT_TRUE(model_.CheckManifest(other_.manifest(), false).ok());
  EXPECT_TRUE(model_.Declare(other_));
  EXPECT_EQ(model_.generation(), 2u);
  EXPECT_EQ(model_.map(), other_);
  EXPECT_EQ(model_.seeder(), "");
  model_.Save();
  EXPECT_TRUE(model_.stays());
  EXPECT_FALSE(model_.CheckManifest(map_.manifest(), false).ok());
  model_.Seeded();
  EXPECT_EQ(model_.state(), ModelState::kSeeded);
  EXPECT_FALSE(model_.CheckManifest(map_.manifest(), false).ok());
  EXPECT_TRUE(model_.CheckManifest(other_.manifest(), false).ok());
}

TEST_F(ModelFactTest, SeederIsAnotherOneWithAnotherNameOrProcess) {
  model_.Declare(map_);
  EXPECT_TRUE(model_.ExpectSeedFrom("a", "1"));
  EXPECT_FALSE(model_.ExpectSeedFrom("a", "1"));
  EXPECT_TRUE(model_.ExpectSeedFrom("a", "2"));
  EXPECT_TRUE(model_.ExpectSeedFrom("b", "2"));
  EXPECT_EQ(model_.seeder_session(), "2");
}

TEST_F(ModelFactTest, UpdateWithoutAModelIsNoNews) {
  EXPECT_FALSE(*Follow(std::nullopt, std::nullopt));
  EXPECT_TRUE(*Follow(4, map_));
  EXPECT_EQ(model_.generation(), 4u);
  EXPECT_FALSE(*Follow(std::nullopt, std::nullopt));
  EXPECT_FALSE(*Follow(5, std::nullopt));
  EXPECT_EQ(model_.generation(), 4u);
  EXPECT_EQ(model_.map(), map_);
}

TEST_F(ModelFactTest, HigherNumberReplacesAndALowerOneIsStale) {
  ASSERT_TRUE(Follow(2, map_).ok());
  EXPECT_FALSE(*Follow(2, map_));
  EXPECT_FALSE(*Follow(1, map_));
  EXPECT_TRUE(*Follow(3, other_));
  EXPECT_EQ(model_.generation(), 3u);
  EXPECT_EQ(model_.map(), other_);
  EXPECT_FALSE(Follow(3, map_).ok());
  EXPECT_FALSE(Follow(2, map_).ok());
  EXPECT_TRUE(*Follow(4, other_)) << "withdrawn and declared again in between";
}

TEST_F(ModelFactTest, TrainedModelIsNotReplacedAndTheErrorNamesBoth) {
  ASSERT_TRUE(Follow(1, map_).ok());
  MakeSeeded();
  const absl::Status status = Follow(2, other_, /*trained=*/true).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("generation 2"), HasSubstr("trained of generation 1"), HasSubstr("a")));
  EXPECT_FALSE(*Follow(7, map_, /*trained=*/true)) << "the same model by another number";
  EXPECT_EQ(model_.generation(), 1u);
}

TEST_F(ModelFactTest, InitialParametersThatNoSiteHasTrainedGiveWayToAHigherNumberAlone) {
  ASSERT_TRUE(Follow(1, map_).ok());
  MakeSeeded();
  EXPECT_FALSE(Follow(1, other_).ok());
  EXPECT_FALSE(*Follow(1, map_));
  EXPECT_TRUE(model_.stays());
  EXPECT_TRUE(*Follow(2, other_));
  EXPECT_EQ(model_.state(), ModelState::kDeclared);
  EXPECT_EQ(model_.map(), other_);
  MakeSeeded();
  EXPECT_TRUE(*Follow(3, other_)) << "withdrawn and declared again in between: another site's values";
  EXPECT_FALSE(model_.stays());
}

TEST_F(ModelFactTest, ShardZeroOfBeforeGivesNoNumber) {
  EXPECT_TRUE(*Follow(std::nullopt, map_));
  EXPECT_EQ(model_.generation(), 1u);
  EXPECT_FALSE(*Follow(std::nullopt, map_));
  EXPECT_TRUE(*Follow(std::nullopt, other_));
  EXPECT_EQ(model_.generation(), 2u);
  MakeSeeded();
  EXPECT_FALSE(Follow(std::nullopt, map_, /*trained=*/true).ok());
}

TEST_F(ModelFactTest, NumberZeroIsNone) { EXPECT_TRUE(absl::IsInvalidArgument(Follow(0, map_).status())); }

TEST_F(ModelFactTest, RestoredOneGoesOn) {
  ModelFact declared(3, map_, /*seeded=*/false, "a");
  EXPECT_EQ(declared.state(), ModelState::kDeclared);
  EXPECT_TRUE(declared.ExpectSeedFrom("a", "1")) << "what it had sent is gone";
  EXPECT_TRUE(declared.Declare(other_));
  EXPECT_EQ(declared.generation(), 4u);
  EXPECT_TRUE(ModelFact(3, map_, /*seeded=*/true, "a").stays());
}

// Which data a site may join a run with.

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
