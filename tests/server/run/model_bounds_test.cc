#include "server/run/model_bounds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/model_manifest.h"
#include "tests/server/calls/coordinator_for_test.h"

namespace causeway::server {
namespace {

using testing::HasSubstr;

core::Manifest Huge() { return {{.name = "w", .shape = {int64_t{1} << 20, int64_t{1} << 20}}}; }

TEST(ModelBounds, ModelThatTheMachineCannotHoldIsRefusedWithWhatItWouldNeed) {
  const ModelBounds bounds{.memory_bytes = int64_t{64} * 1'000'000'000};
  EXPECT_EQ(bounds.Check(Huge()).message(),
            "the model's 1.1e+12 values need 1.32e+04 GB of the coordinator's memory (12 bytes each), and this machine "
            "has 64 GB");
  EXPECT_TRUE(bounds.Check({{.name = "w", .shape = {1'000'000'000}}}).ok());
  const ModelBounds share{.memory_bytes = int64_t{14} * 1'000'000'000'000, .shard = {1, 2}};
  EXPECT_TRUE(share.Check(Huge()).ok());
}

TEST(ModelBounds, ModelOfTheBuiltInTrainersIsThatOfRunYaml) {
  core::RunConfig config;
  const ModelBounds bounds = BoundsOf(config, {});
  core::Manifest manifest = core::ModelManifest(config);
  EXPECT_TRUE(bounds.Check(manifest).ok());
  manifest[1].shape[0] += 1;
  EXPECT_THAT(std::string(bounds.Check(manifest).message()), HasSubstr("at tensor 1: expected "));
  config.model_kind = core::ModelKind::kExternal;
  EXPECT_TRUE(BoundsOf(config, {}).Check(manifest).ok());
  EXPECT_GT(BoundsOf(config, {}).memory_bytes, 0);
}

TEST(ModelBounds, FirstJoinerWithAnotherModelIsRefusedAndTheHonestOneSeeds) {
  CoordinatorForTest run;
  run.bounds.manifest = ManifestForTest();
  run.Restart();
  const v1::CoordinatorMessage refused = run.Join("bad", Huge());
  ASSERT_TRUE(refused.has_refused());
  EXPECT_EQ(refused.refused().retry_after_ms(), 0);
  EXPECT_THAT(refused.refused().reason(), HasSubstr("the model differs from the run's at tensor 0"));
  EXPECT_TRUE(run.Join("good", ManifestForTest()).has_welcome());
}

}  // namespace
}  // namespace causeway::server
