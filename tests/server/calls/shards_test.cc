// The answers of one of several coordinators to callers who are lost. How shards work together is in tests/e2e.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <future>

#include "absl/strings/str_cat.h"
#include "server/calls/gate.h"
#include "tests/server/calls/coordinator_for_test.h"
#include "tests/server/calls/waiting_download.h"
#include "tests/server/run/direct_coordinator.h"

namespace causeway::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Shards, FragmentOfAnotherShardIsRefusedWithItsOwner) {
  CoordinatorForTest run(Gate::Open(), kSecond);
  const UploadOutcome outcome = run.Contribute("a", 0);
  EXPECT_EQ(outcome.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(outcome.status.error_message(), "fragment 0 is of shard 0, this is shard 1 of 2");
}

TEST(Shards, CallerWhoExpectsAnotherShardIsRefused) {
  CoordinatorForTest run(Gate::Open(), kLead);
  const v1::CoordinatorMessage answer = run.Join("a", ManifestForTest(), [](v1::Context& context) {
    context.set_shard(1);
    context.set_num_shards(2);
  });
  EXPECT_THAT(answer.refused().reason(), HasSubstr("expected shard 1 of 2, this is shard 0 of 2"));
  EXPECT_EQ(answer.refused().retry_after_ms(), 0);
}

TEST(Shards, SeedIsTakenFromTheSiteThatShardZeroNamesAndOnlyOfOwnFragments) {
  CoordinatorForTest run(Gate::Open(), kSecond);
  v1::MembershipUpdate update = UpdateWith(run.map, "a", 0);
  run.Follow(update);
  ASSERT_TRUE(run.Join("a").has_welcome());
  v1::UploadHeader header = HeaderOf("a", 1);
  header.set_initial(true);
  const std::vector<std::string> chunks = ChunksOf(run.map.fragment(1), core::CodecId::kFloat32, 0);
  EXPECT_EQ(run.Upload(header, chunks).status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_FALSE(run.coordinator->Report().seeded());
  update.set_seeder("a");
  run.Follow(update);
  EXPECT_TRUE(run.Upload(header, chunks).admitted());
  ASSERT_TRUE(run.coordinator->Finish().ok());
  EXPECT_TRUE(run.coordinator->Report().seeded());
  const StatusSnapshot status = run.coordinator->Status();
  ASSERT_EQ(status.fragments.size(), 1u);
  EXPECT_EQ(status.fragments[0].id, 1);
}

TEST(Shards, ModelOfAnotherNumberOfFragmentsEndsTheCoordinator) {
  CoordinatorForTest run(Gate::Open(), kSecond);
  const auto other = *core::BuildFragmentMap(ManifestForTest(), 1, core::FragmentAssignment::kStrided);
  v1::MembershipUpdate update = UpdateWith(other, "a", 0);
  run.Follow(update);
  EXPECT_THAT(std::string(run.coordinator->status().message()), HasSubstr("expected 2 fragments, got 1"));
}

TEST(Shards, HigherGenerationReplacesTheModelAndWhoWaitsAsksAgain) {
  CoordinatorForTest run(Gate::Open(), kSecond);
  v1::MembershipUpdate update = UpdateWith(run.map, "a", 0);
  update.set_generation(1);
  run.Follow(update);
  EXPECT_EQ(run.Join("a").welcome().generation(), 1u);
  WaitingDownload anchor(run, "a", 1, /*generation=*/1);
  core::Manifest manifest = ManifestForTest();
  manifest[1].shape = {301};
  const auto other = *core::BuildFragmentMap(manifest, 2, core::FragmentAssignment::kStrided);
  v1::MembershipUpdate next = UpdateWith(other, "b", 0);
  next.set_generation(2);
  EXPECT_GT(run.Join("b", manifest).refused().retry_after_ms(), 0) << "shard 0 may know more";
  run.Follow(next);
  EXPECT_EQ(anchor.Finish().error_code(), grpc::StatusCode::ABORTED);
  EXPECT_EQ(run.Join("b", manifest).welcome().generation(), 2u);
  run.Restart();
  EXPECT_EQ(run.Join("b", manifest).welcome().generation(), 2u) << "the follower's journal has it, too";
  run.Follow(update);
  EXPECT_THAT(std::string(run.coordinator->status().message()), HasSubstr("generation 1"));
}

// Shard 1 alone has its part of the initial parameters when all sites leave, and others come with another model.
class AnotherModelAfterThePart : public testing::Test {
 protected:
  AnotherModelAfterThePart() {
    next_.set_generation(2);
    v1::MembershipUpdate update = UpdateWith(run_.map, "a", 0);
    update.set_generation(1);
    update.set_seeder("a");
    run_.Follow(update);
    run_.Join("a");
  }

  static core::Manifest OtherManifest() {
    core::Manifest manifest = ManifestForTest();
    manifest[1].shape = {301};
    return manifest;
  }
  uint64_t Generation() { return run_.coordinator->Report().generation(); }
  bool Seeded() { return run_.coordinator->Report().seeded(); }

  DirectCoordinator run_{ConfigForTest(), kSecond};
  const core::FragmentMap other_ = *core::BuildFragmentMap(OtherManifest(), 2, core::FragmentAssignment::kStrided);
  v1::MembershipUpdate next_ = UpdateWith(other_, "b", 0);
};

TEST_F(AnotherModelAfterThePart, ForgetsItAndTakesTheNextOnesAlsoAfterARestart) {
  run_.Seed("a");
  run_.Settle();
  ASSERT_TRUE(Seeded());
  run_.Follow(next_);
  run_.Settle();
  EXPECT_TRUE(run_.coordinator->status().ok()) << run_.coordinator->status();
  EXPECT_FALSE(Seeded());
  EXPECT_EQ(Generation(), 2u);
  EXPECT_THAT(run_.History("withdrawn"), ElementsAre(HasSubstr("no site has trained")));
  run_.Restart();
  EXPECT_FALSE(Seeded());
  next_.set_seeder("b");
  run_.Follow(next_);
  run_.Join("b", [](v1::Join& join) { transport::ToProto(OtherManifest(), join.mutable_manifest()); });
  v1::UploadHeader header = HeaderOf("b", 1);
  header.set_initial(true);
  EXPECT_TRUE(run_.Upload(header, ChunksOf(other_.fragment(1), core::CodecId::kFloat32, 3)).admitted());
  run_.Settle();
  EXPECT_TRUE(Seeded());
  run_.Restart();
  EXPECT_TRUE(Seeded());
  EXPECT_EQ(run_.coordinator->Describe().manifest().tensors(1).shape(0), 301);
}

class AnotherModelWhileThePartIsSaved : public AnotherModelAfterThePart, public testing::WithParamInterface<bool> {};

INSTANTIATE_TEST_SUITE_P(ShardZero, AnotherModelWhileThePartIsSaved, testing::Bool());  // of before: it gives no number

TEST_P(AnotherModelWhileThePartIsSaved, WaitsUntilItIs) {
  if (GetParam()) next_.clear_generation();
  std::future<void> seeding;
  {
    const HeldJournal held(*run_.journal);
    seeding = std::async(std::launch::async, [this] { run_.Seed("a"); });
    v1::UploadHeader header = HeaderOf("a", 1);
    header.set_initial(true);
    while (run_.BeginUpload(header)->contribution != nullptr) continue;  // until it is being saved
    run_.Follow(next_);
    EXPECT_EQ(run_.coordinator->Describe().manifest().tensors(1).shape(0), 300);
  }
  seeding.get();
  run_.Settle();
  EXPECT_TRUE(run_.coordinator->status().ok()) << run_.coordinator->status();
  EXPECT_FALSE(Seeded());
  EXPECT_EQ(Generation(), 2u);
  EXPECT_EQ(run_.coordinator->Describe().manifest().tensors(1).shape(0), 301);
}

TEST_F(AnotherModelAfterThePart, EndsTheCoordinatorOnceSitesHaveTrained) {
  run_.Seed("a");
  v1::MembershipUpdate started = UpdateWith(run_.map, "a", 0);
  started.set_started(true);
  run_.Follow(started);
  run_.Follow(next_);
  run_.Settle();
  EXPECT_THAT(std::string(run_.coordinator->status().message()), HasSubstr("what sites have trained of generation 1"));
  EXPECT_TRUE(Seeded());
}

TEST(Shards, WordOfThePartsOfAnEarlierGenerationDoesNotCountAtShardZero) {
  core::RunConfig config = ConfigForTest();
  config.membership.min_sites = 1;
  DirectCoordinator run(config, kLead);
  run.Join("a");
  run.Leave("a");
  run.Join("b", [](v1::Join& join) { join.mutable_manifest()->mutable_tensors(3)->set_shape(0, 701); });
  run.Seed("b");  // fragment 0, which is as it was
  run.Ready("b");
  run.Settle();
  v1::ShardReport report;
  report.set_seeded(true);
  report.set_generation(1);
  const auto reason = [&] { return run.coordinator->Status().reason; };
  run.coordinator->Handle(input::Report{1, report});
  EXPECT_EQ(reason(), "waiting for the initial parameters of shard 1");
  report.set_generation(2);
  run.coordinator->Handle(input::Report{1, report});
  EXPECT_NE(reason(), "waiting for the initial parameters of shard 1");
}

TEST(Shards, UpdateWithoutAModelIsNoNews) {
  CoordinatorForTest run(Gate::Open(), kSecond);
  v1::MembershipUpdate update = UpdateWith(run.map, "a", 0);
  run.Follow(update);
  ASSERT_TRUE(run.Join("a").has_welcome());
  WaitingDownload anchor(run, "a", 1);
  v1::MembershipUpdate without = update;  // shard 0 was started again, and does not know it
  without.clear_manifest();
  without.clear_fragments();
  run.Follow(without);
  EXPECT_TRUE(run.coordinator->Describe().has_manifest());
  update.set_seeder("a");
  run.Follow(update);
  run.Seed("a");
  EXPECT_TRUE(anchor.Finish().ok());
}

TEST(Shards, SeederIsAskedByEachShardThatLacksItsPart) {
  CoordinatorForTest run(Gate::Open(), kSecond);
  v1::MembershipUpdate update = UpdateWith(run.map, "a", 0);
  run.Follow(update);
  ASSERT_TRUE(run.Join("a").has_welcome());
  update.set_seeder("a");
  run.Follow(update);  // it learns of the seeder
  EXPECT_TRUE(run.AwaitSeedRequest("a"));
  run.Restart();
  ASSERT_TRUE(run.Join("a").has_welcome());  // shard 0 is away: the journal knows the stay, the model and the seeder
  EXPECT_TRUE(run.AwaitSeedRequest("a"));
  run.Seed("a");
  ASSERT_TRUE(run.Join("a").has_welcome());
  run.TickAt(0);
  EXPECT_TRUE(run.coordinator->Report().seeded());
}

TEST(Shards, FollowerThatSaysItIsNoShardOfTheRunIsRefusedAndTheCoordinatorLivesOn) {
  CoordinatorForTest run(Gate::Open(), kLead);
  for (int index : {-1, 0, 2, 1024}) {
    grpc::ClientContext call;
    const auto stream = run.stub->Follow(&call);
    v1::FollowMessage message;
    message.mutable_context()->set_protocol(transport::kProtocol);
    message.mutable_context()->set_run_id("test");
    message.mutable_context()->set_shard(index);
    message.mutable_context()->set_num_shards(2);
    message.mutable_report()->set_seeded(true);
    stream->Write(message);
    v1::MembershipUpdate update;
    EXPECT_FALSE(stream->Read(&update)) << index;
    const grpc::Status status = stream->Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION) << index;
    EXPECT_EQ(status.error_message(),
              absl::StrCat("expected a shard that follows shard 0, got shard ", index, " of 2; this is shard 0 of 2"));
  }
  EXPECT_TRUE(run.Join("a").has_welcome());
}

}  // namespace
}  // namespace causeway::server
