// A run whose model the sites bring: what the first one says is the model, for all others and after a restart.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "server/calls/gate.h"
#include "tests/server/calls/coordinator_for_test.h"

namespace causeway::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

core::RunConfig ExternalConfig() {
  core::RunConfig config = ConfigForTest();
  config.model_kind = core::ModelKind::kExternal;
  config.sync.fragments = {{"adapter."}, {""}};
  return config;
}

// A frozen base with two adapters, an embedding, and a head that is tied to it.
core::Manifest AdaptedModel() {
  return {{.name = "embed", .shape = {300, 10}, .kind = core::TensorKind::kEmbedding, .dtype = core::DType::kBfloat16},
          {.name = "base.0", .shape = {100, 100}, .layer = 0, .frozen = true, .values_digest = 0x1234},
          {.name = "adapter.0.a", .shape = {100, 4}, .layer = 0},
          {.name = "adapter.0.b", .shape = {4, 100}, .layer = 0},
          {.name = "head", .shape = {300, 10}, .kind = core::TensorKind::kHead, .alias_of = "embed"}};
}

class ExternalModelTest : public ::testing::Test {
 protected:
  core::Manifest Described() {
    const v1::RunDescription description = run.coordinator->Describe();
    return description.has_manifest() ? *transport::FromProto(description.manifest()) : core::Manifest();
  }

  std::string Refusal(const std::string& site, const core::Manifest& manifest) {
    return run.Join(site, manifest).refused().reason();
  }

  CoordinatorForTest run{Gate::Open(), {}, ExternalConfig(), AdaptedModel()};
};

TEST_F(ExternalModelTest, ModelOfTheFirstSiteIsTheRunsAndItsUnsyncedTensorsHaveNoPlace) {
  EXPECT_TRUE(Described().empty());
  const v1::CoordinatorMessage answer = run.Join("a", AdaptedModel());
  ASSERT_TRUE(answer.has_welcome());
  EXPECT_EQ(*transport::FromProto(answer.welcome().manifest()), AdaptedModel());
  ASSERT_EQ(answer.welcome().fragments_size(), 2);
  EXPECT_THAT(answer.welcome().fragments(0).tensors(), ElementsAre(2, 3));
  EXPECT_THAT(answer.welcome().fragments(1).tensors(), ElementsAre(0));
  EXPECT_EQ(Described(), AdaptedModel());
  EXPECT_TRUE(run.Join("b", AdaptedModel()).has_welcome());
  run.Seed("a");
  EXPECT_EQ(run.coordinator->Describe().versions_size(), 2);
}

TEST_F(ExternalModelTest, AnotherModelIsRefusedWithTheFirstDifference) {
  ASSERT_TRUE(run.Join("a", AdaptedModel()).has_welcome());
  core::Manifest base = AdaptedModel(), shape = AdaptedModel(), trained = AdaptedModel(), untied = AdaptedModel();
  base[1].values_digest = 0x1235;
  EXPECT_THAT(Refusal("b", base), HasSubstr("at tensor 1: expected base.0 [100,100] matrix of layer 0, frozen with "
                                            "values of digest 0000000000001234, got 0000000000001235"));
  shape[3].shape = {5, 100};
  EXPECT_THAT(Refusal("b", shape), HasSubstr("at tensor 3: expected adapter.0.b [4,100] matrix of layer 0, got "
                                             "adapter.0.b [5,100] matrix of layer 0"));
  trained[1].frozen = false;
  trained[1].values_digest = 0;
  EXPECT_THAT(Refusal("b", trained), HasSubstr("at tensor 1: expected base.0 [100,100] matrix of layer 0, frozen, got "
                                               "base.0 [100,100] matrix of layer 0"));
  untied[4].alias_of.clear();
  EXPECT_THAT(Refusal("b", untied), HasSubstr("at tensor 4: expected head [300,10] head, tied to embed, got"));
}

TEST_F(ExternalModelTest, SitesMayDifferInTypesAndLeaveDigestsOut) {
  ASSERT_TRUE(run.Join("a", AdaptedModel()).has_welcome());
  core::Manifest other = AdaptedModel();
  other[0].dtype = core::DType::kFloat32;
  other[1].values_digest = 0;
  ASSERT_TRUE(run.Join("b", other).has_welcome());
  EXPECT_EQ(Described(), AdaptedModel());
}

TEST_F(ExternalModelTest, ModelThatTheFragmentsDoNotFitIsRefused) {
  core::Manifest manifest = AdaptedModel();
  for (core::TensorSpec& tensor : manifest) tensor.frozen = tensor.layer == 0;
  for (core::TensorSpec& tensor : manifest) tensor.values_digest = 0;
  EXPECT_THAT(Refusal("a", manifest), HasSubstr("got none in fragment 0 by the prefixes [adapter.]"));
  EXPECT_TRUE(Described().empty());
}

TEST_F(ExternalModelTest, ModelIsReplacedBeforeTheSeedWhenNoSiteIsLeftOfIt) {
  core::Manifest first = AdaptedModel();
  first[2].shape = {100, 8};
  ASSERT_TRUE(run.Join("a", first).has_welcome());
  EXPECT_THAT(Refusal("b", AdaptedModel()), HasSubstr("at tensor 2"));
  run.TickAt(kAfterTheLease);
  ASSERT_TRUE(run.Join("b", AdaptedModel()).has_welcome());
  EXPECT_EQ(Described(), AdaptedModel());
}

TEST_F(ExternalModelTest, ModelSurvivesARestartBeforeAndAfterTheSeed) {
  ASSERT_TRUE(run.Join("a", AdaptedModel()).has_welcome());
  run.Restart();
  EXPECT_EQ(Described(), AdaptedModel());
  ASSERT_TRUE(run.Join("a", AdaptedModel()).has_welcome());
  run.Seed("a");
  run.Restart();
  EXPECT_EQ(Described(), AdaptedModel());
  core::Manifest base = AdaptedModel();
  base[1].values_digest = 0x1235;
  EXPECT_THAT(Refusal("b", base), HasSubstr("the base model differs from the run's at tensor 1"));
  EXPECT_TRUE(run.Join("b", AdaptedModel()).has_welcome());
}

}  // namespace
}  // namespace causeway::server
