// The model of a run: who may say what it is, when it is another one, and what a number that is named means.
#include "server/rounds/model_fact.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "core/fragment_map.h"

namespace causeway::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

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

}  // namespace
}  // namespace causeway::server
