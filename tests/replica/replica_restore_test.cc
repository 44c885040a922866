// A replica that goes on from what another one held: what a checkpoint keeps.
#include "tests/replica/replica_for_test.h"

namespace causeway::replica {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(ReplicaTest, RestoredBetweenTheOuterStepAndTheMoveOfThetaGoesOnWithTheSameBits) {
  config_.codec = {core::CodecId::kSign, core::CodecId::kFloat32, 1, 0};
  Make();
  const core::OuterParameters outer = {.lr = 0.7f, .momentum = 0.9f};
  first_ = {0.5f, 0.25f, 0.75f};
  Send();
  replica_->Resolve(/*merged=*/true);
  Send();  // unresolved
  ASSERT_TRUE(replica_->TakeUpdate(outer, UpdateOf(Random(1)), {}, /*keep_step=*/true).ok());

  core::BufferPool pool;
  const std::unique_ptr<Replica> restored = New(&pool);
  ASSERT_TRUE(restored->Restore(replica_->version(), replica_->Arrays()).ok());
  EXPECT_EQ(restored->version(), 1);
  EXPECT_EQ(restored->Held().held.anchor_digest, replica_->Held().held.anchor_digest);
  EXPECT_EQ(restored->step().lr, 0.7f);
  EXPECT_EQ(Bits(restored->step().values), Bits(replica_->step().values));
  EXPECT_EQ(restored->ResidualNorm(), replica_->ResidualNorm());

  EXPECT_TRUE(store_.Move(ranges_, Movement::Step(restored->step().lr, restored->step().values)).ok());
  restored->ReleaseStep();
  replica_->ReleaseStep();
  for (Replica* replica : {restored.get(), replica_.get()}) {
    replica->Resolve(/*merged=*/true);
    ASSERT_TRUE(replica->TakeUpdate(outer, UpdateOf(Random(2)), {}, /*keep_step=*/false).ok());
  }
  EXPECT_EQ(restored->Held().held.anchor_digest, replica_->Held().held.anchor_digest);
  std::vector<float> theta = Theta(), same = theta;
  EXPECT_EQ(*restored->EncodeContribution(theta), *replica_->EncodeContribution(same));
}

TEST_F(ReplicaTest, RestoredAfterTheMoveOfThetaHasNoStep) {
  ASSERT_TRUE(replica_->TakeUpdate({.lr = 1, .momentum = 0}, UpdateOf(1), {}, /*keep_step=*/true).ok());
  replica_->ReleaseStep();
  EXPECT_TRUE(replica_->Arrays().step.empty());
  const std::unique_ptr<Replica> restored = New(&pool_);
  ASSERT_TRUE(restored->Restore(1, replica_->Arrays()).ok());
  EXPECT_TRUE(restored->step().values.empty());
  EXPECT_EQ(restored->Held().held.anchor_digest, replica_->Held().held.anchor_digest);
}

TEST_F(ReplicaTest, ResidualOfNoContributionIsNotRestored) {
  config_.codec = {core::CodecId::kSign, core::CodecId::kFloat32, 1, 0};
  const std::unique_ptr<Replica> restored = New(&pool_);
  const std::vector<float> values(2 * core::kUnitValues, 1.0f);
  ASSERT_TRUE(
      restored->Restore(3, {.anchor = values, .momentum = values, .residual = values, .next_residual = values}).ok());
  EXPECT_FALSE(restored->Arrays().pending);
  EXPECT_TRUE(restored->Arrays().next_residual.empty());
}

TEST_F(ReplicaTest, ArraysOfAnotherSizeAreRefusedAndRestoreNothing) {
  const std::unique_ptr<Replica> restored = New(&pool_);
  const uint64_t before = restored->Held().held.anchor_digest;
  const std::vector<float> values(2 * core::kUnitValues, 1.0f);
  const std::span<const float> all(values), less = all.first(10);
  const auto refusal = [&](const ReplicaArrays& arrays) { return std::string(restored->Restore(3, arrays).message()); };
  EXPECT_EQ(refusal({.anchor = less, .momentum = all}), "anchor of fragment 0: expected 8192 values, got 10");
  EXPECT_EQ(refusal({.anchor = all, .momentum = less}), "momentum of fragment 0: expected 8192 values, got 10");
  EXPECT_EQ(refusal({.anchor = all, .momentum = all, .step = less}),
            "step of fragment 0: expected 8192 values, got 10");
  EXPECT_EQ(refusal({.anchor = all, .momentum = all, .residual = all}),
            "residual of fragment 0: expected 0 values, got 8192");
  EXPECT_THAT(refusal({.anchor = all, .momentum = all, .next_residual = all, .pending = true}),
              HasSubstr("expected 0 values, got 8192"));
  EXPECT_EQ(restored->Held().held.anchor_digest, before);
  EXPECT_EQ(restored->version(), 0);
}

}  // namespace
}  // namespace causeway::replica
