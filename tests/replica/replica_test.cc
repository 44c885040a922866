

#include "replica/replica.h"

#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "core/digest.h"
#include "core/random.h"
#include "replica/host_store.h"

namespace causeway::replica {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// One fragment of two tensors whose θ is in the test's hands, and its replica.

inline std::vector<uint32_t> Bits(std::span<const float> values) {
  std::vector<uint32_t> bits;
  for (float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

// One fragment of two tensors, each smaller than a unit.
class ReplicaTest : public ::testing::Test {
 protected:
  ReplicaTest() {
    config_.run_id = "test";
    config_.codec = {core::CodecId::kFloat32, core::CodecId::kFloat32, 0, 0};
    Make();
  }

  void Make() {
    replica_ = New(&pool_);
    replica_->SetInitial(Theta());
  }
  std::unique_ptr<Replica> New(core::BufferPool* pool) const {
    return std::make_unique<Replica>(map_, 0, config_, pool);
  }

  // θ as the movers read it.
  std::vector<float> Theta() {
    std::vector<float> staging(map_.fragment(0).padded_values());
    EXPECT_TRUE(store_.Read(ranges_, staging).ok());
    return staging;
  }

  // An update's chunks that carry `gradient` for every value.
  std::vector<std::string> UpdateOf(float gradient) const {
    return UpdateOf(std::vector<float>(map_.fragment(0).padded_values(), gradient));
  }
  std::vector<std::string> UpdateOf(const std::vector<float>& gradient) const {
    std::vector<std::string> chunks;
    for (const codecs::ChunkSpan& span : codecs::PlanChunks(map_.fragment(0), codecs::DownLeg(config_))) {
      chunks.push_back(*codecs::EncodeChunk(span, std::span(gradient).subspan(span.first_value(), span.values), {}));
    }
    return chunks;
  }

  // The download of an anchor.
  // The digest of the anchor that has this value everywhere, with its padding of zero.
  uint64_t DigestOf(float value) const {
    std::vector<float> padded(map_.fragment(0).padded_values());
    for (const core::TensorPlace& place : map_.fragment(0).tensors) {
      std::ranges::fill(PartOf(std::span(padded), place), value);
    }
    return core::DigestUnits(padded, 0);
  }

  std::vector<std::string> AnchorOf(float anchor, float momentum) const {
    std::vector<std::string> chunks = UpdateOf(anchor);
    for (std::string& chunk : UpdateOf(momentum)) chunks.push_back(std::move(chunk));
    return chunks;
  }

  std::vector<float> Random(uint64_t seed) const {
    std::vector<float> values(map_.fragment(0).padded_values());
    for (float& value : values) value = static_cast<float>(2 * core::UnitInterval(seed = core::SplitMix64(seed)) - 1);
    return values;
  }

  // The values that the coordinator would decode from a contribution.
  std::vector<float> Decoded(const std::vector<core::Bytes>& chunks) const {
    std::vector<float> all;
    for (const core::Bytes& bytes : chunks) {
      const codecs::ChunkView view = *codecs::ChunkView::Parse(bytes);
      std::vector<float> values(view.span().values);
      view.Decode(view.span().first_unit, values);
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }

  std::vector<float> Send() {
    std::vector<float> staging = Theta();
    return Decoded(*replica_->EncodeContribution(staging));
  }

  std::vector<float> first_ = {1, 1, 1};
  std::vector<float> second_ = {2, 2};
  core::FragmentMap map_{{{.name = "first", .shape = {3}, .layer = 0}, {.name = "second", .shape = {2}, .layer = 0}},
                         {{0, 1}}};
  const UnitRanges ranges_ = RangesOf(map_.fragment(0));
  HostStore store_{{first_, second_}, nullptr};
  core::RunConfig config_;
  core::BufferPool pool_;
  std::unique_ptr<Replica> replica_;
};

// ---- Sending ----

TEST_F(ReplicaTest, OuterGradientIsAnchorMinusLocal) {
  first_[1] = 0.75f;  // trained downwards: a positive gradient
  second_[0] = 2.5f;
  EXPECT_THAT(Send(), ElementsAre(0, 0.25f, 0, -0.5f, 0));
}

TEST_F(ReplicaTest, WhatTrainsAfterTheCopyIsNotSent) {
  std::vector<float> staging = Theta();
  first_[0] = 100;
  EXPECT_THAT(Decoded(*replica_->EncodeContribution(staging)), Each(0.0f));
}

// Against W itself the gradient would be what rounding dropped, and W would end on the numbers that the dtype has.
TEST_F(ReplicaTest, ThetaOfSixteenBitsThatWasNotTrainedSendsNothing) {
  for (core::DType dtype : {core::DType::kBfloat16, core::DType::kFloat16}) {
    Replica replica(map_, 0, config_, &pool_, {dtype, dtype});
    first_ = {0.3f, 1 / 3.0f, -0.7f};
    replica.SetInitial(Theta());
    core::RoundTo(dtype, first_, first_);
    std::vector<float> staging = Theta();
    EXPECT_THAT(Decoded(*replica.EncodeContribution(staging)), Each(0.0f)) << core::DTypeName(dtype);
    replica.Resolve(/*merged=*/true);
    first_[1] += 0.125f;  // trained
    staging = Theta();
    EXPECT_EQ(Decoded(*replica.EncodeContribution(staging))[1], -0.125f) << core::DTypeName(dtype);
  }
}

TEST_F(ReplicaTest, RefusedContributionStaysWholeInTheSite) {
  config_.codec = {core::CodecId::kSign, core::CodecId::kFloat32, 1, 0};
  Make();
  first_ = {0.5f, 0.25f, 0.75f};
  const std::vector<float> refused = Send();
  replica_->Resolve(/*merged=*/false);
  EXPECT_EQ(replica_->ResidualNorm(), 0);
  EXPECT_EQ(Send(), refused);  // nothing of it was taken away, nothing was added
  replica_->Resolve(/*merged=*/true);
  EXPECT_GT(replica_->ResidualNorm(), 0);
}

TEST_F(ReplicaTest, NonFiniteValueNamesItsTensorAndIndexAndIsNotSent) {
  second_[1] = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> staging = Theta();
  const auto chunks = replica_->EncodeContribution(staging);
  EXPECT_EQ(chunks.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(chunks.status().message()), HasSubstr("outer gradient of second is nan at index 1"));
}

TEST_F(ReplicaTest, InitialParametersAreWhatTheSiteHolds) {
  EXPECT_THAT(Decoded(*replica_->EncodeInitial(Theta())), ElementsAre(1, 1, 1, 2, 2));
}

TEST_F(ReplicaTest, NonFiniteInitialParameterIsNamed) {
  first_[2] = std::numeric_limits<float>::infinity();
  EXPECT_THAT(std::string(replica_->EncodeInitial(Theta()).status().message()),
              HasSubstr("initial value of first is inf at index 2"));
}

// ---- Receiving ----

TEST_F(ReplicaTest, UpdateTakesTheOuterStepOnTheAnchorAndLeavesLocalParameters) {
  ASSERT_TRUE(replica_->TakeUpdate({.lr = 0.5f, .momentum = 0.5f}, UpdateOf(1), {}, /*keep_step=*/false).ok());
  EXPECT_EQ(replica_->version(), 1);
  EXPECT_EQ(replica_->anchor()[0], 0.25f);  // v = 1, s = 1.5, W = 1 − 0.75
  EXPECT_TRUE(replica_->step().values.empty());
  EXPECT_EQ(first_[0], 1);
  EXPECT_TRUE(store_.Move(ranges_, Movement::Mix(0.5f, replica_->anchor())).ok());
  EXPECT_EQ(first_[0], 0.625f);
}

TEST_F(ReplicaTest, UpdateWithoutOurContributionMovesAnchorAndLocalAlike) {
  first_[0] = 0.5f;
  ASSERT_TRUE(replica_->TakeUpdate({.lr = 0.5f, .momentum = 0.5f}, UpdateOf(1), {}, /*keep_step=*/true).ok());
  EXPECT_TRUE(store_.Move(ranges_, Movement::Step(replica_->step().lr, replica_->step().values)).ok());
  EXPECT_EQ(replica_->anchor()[0] - first_[0], 0.5f);  // Δ as before
  EXPECT_EQ(first_[0], -0.25f);
}

// s made of v and g as it was when θ moved straight from them: θ ← fma(−η, fma(μ, v, g), θ).
TEST_F(ReplicaTest, KeptStepMovesThetaToTheBitAsVAndGDid) {
  const core::OuterParameters outer = {.lr = 0.7f, .momentum = 0.9f};
  std::vector<float> expected = Theta(), momentum(expected.size(), 0.0f);
  for (uint64_t round = 1; round <= 5; ++round) {
    const std::vector<float> gradient = Random(round);
    ASSERT_TRUE(replica_->TakeUpdate(outer, UpdateOf(gradient), {}, /*keep_step=*/true).ok());
    ASSERT_EQ(replica_->step().values.size(), gradient.size());
    EXPECT_TRUE(store_.Move(ranges_, Movement::Step(replica_->step().lr, replica_->step().values)).ok());
    replica_->ReleaseStep();
    EXPECT_TRUE(replica_->step().values.empty());
    for (size_t i = 0; i < expected.size(); ++i) {
      momentum[i] = std::fma(outer.momentum, momentum[i], gradient[i]);
      expected[i] = std::fma(-outer.lr, std::fma(outer.momentum, momentum[i], gradient[i]), expected[i]);
    }
    EXPECT_EQ(Bits(first_), Bits(std::span(expected).first(3)));
    EXPECT_EQ(Bits(second_), Bits(std::span(expected).subspan(core::kUnitValues, 2)));
  }
}

TEST_F(ReplicaTest, DamagedUpdateLeavesAnchorUntouched) {
  std::vector<std::string> chunks = UpdateOf(1);
  chunks[1].back() ^= 1;
  const uint64_t before = replica_->Held().held.anchor_digest;
  EXPECT_FALSE(replica_->TakeUpdate({}, chunks, {}, /*keep_step=*/true).ok());
  EXPECT_FALSE(replica_->TakeUpdate({}, std::vector{chunks[0]}, {}, /*keep_step=*/true).ok());
  EXPECT_EQ(replica_->Held().held.anchor_digest, before);
  EXPECT_EQ(replica_->version(), 0);
  EXPECT_TRUE(replica_->step().values.empty());
}

TEST_F(ReplicaTest, AnchorDownloadReplacesAnchorMomentumAndResidual) {
  ASSERT_TRUE(replica_->StageAnchor(7, AnchorOf(/*anchor=*/3, /*momentum=*/1), {}, DigestOf(3)).ok());
  replica_->CommitAnchor(/*keep_residual=*/false);
  EXPECT_TRUE(store_.Move(ranges_, Movement::Mix(0, replica_->anchor())).ok());
  EXPECT_THAT(first_, Each(3.0f));
  EXPECT_EQ(replica_->version(), 7);
  ASSERT_TRUE(replica_->TakeUpdate({.lr = 1, .momentum = 0.5f}, UpdateOf(0), {}, /*keep_step=*/false).ok());
  EXPECT_EQ(replica_->anchor()[0], 2.75f);  // v = 0.5, s = 0.25
}

// For a coordinator that lost the last version: two sites agree on the one before, though one holds the next already.
TEST_F(ReplicaTest, RemembersTheDigestsFromBeforeItsLastUpdate) {
  const auto take = [&] {
    ASSERT_TRUE(replica_->TakeUpdate({.lr = 1, .momentum = 0.5f}, UpdateOf(1), {}, false).ok());
  };
  take();
  EXPECT_FALSE(replica_->Held().before) << "nothing was digested before the first one";
  const core::HeldVersion first = replica_->Held().held;
  EXPECT_EQ(first.momentum_digest, core::DigestUnits(replica_->Arrays().momentum, 0));
  take();
  const core::HeldFragment both = replica_->Held();
  EXPECT_EQ(both.held.version, 2);
  EXPECT_EQ(both.held.momentum_digest, core::DigestUnits(replica_->Arrays().momentum, 0));
  EXPECT_EQ(both.before, first);
  ASSERT_TRUE(replica_->StageAnchor(7, AnchorOf(3, 1), {}, DigestOf(3)).ok());
  replica_->CommitAnchor(/*keep_residual=*/false);
  EXPECT_FALSE(replica_->Held().before);
}

TEST_F(ReplicaTest, StagedAnchorChangesNothingUntilItIsCommittedAndItsDigestIsKnownBefore) {
  const uint64_t before = replica_->Held().held.anchor_digest;
  const absl::Status staged = replica_->StageAnchor(7, AnchorOf(3, 1), {}, DigestOf(3));
  ASSERT_TRUE(staged.ok()) << staged;
  EXPECT_EQ(replica_->Held().held.anchor_digest, before);
  EXPECT_EQ(replica_->version(), 0);
  replica_->CommitAnchor(/*keep_residual=*/true);
  EXPECT_EQ(replica_->Held().held.anchor_digest, DigestOf(3));
  EXPECT_NE(replica_->Held().held.anchor_digest, before);
  EXPECT_EQ(replica_->version(), 7);
}

TEST_F(ReplicaTest, AnchorOfAnotherDigestIsRefusedWithBothAndNothingIsStaged) {
  const absl::Status staged = replica_->StageAnchor(7, AnchorOf(3, 1), {}, DigestOf(4));
  EXPECT_EQ(staged.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(staged.message()),
              HasSubstr("expected digest " + core::DigestText(DigestOf(4)) + ", got " + core::DigestText(DigestOf(3))));
  EXPECT_DEATH(replica_->CommitAnchor(/*keep_residual=*/true), "staged_");
}

TEST_F(ReplicaTest, AnchorWithChunksMissingIsRefusedAndNothingIsStaged) {
  std::vector<std::string> chunks = AnchorOf(3, 1);
  chunks.pop_back();
  EXPECT_THAT(std::string(replica_->StageAnchor(7, chunks, {}, DigestOf(3)).message()),
              HasSubstr("expected 4 chunks of the anchor and the momentum, got 3"));
  chunks.pop_back();
  EXPECT_EQ(replica_->StageAnchor(7, chunks, {}, DigestOf(3)).code(), absl::StatusCode::kInvalidArgument);
  chunks = AnchorOf(3, 1);
  chunks.push_back(chunks.back());
  EXPECT_THAT(std::string(replica_->StageAnchor(7, chunks, {}, DigestOf(3)).message()), HasSubstr("got more"));
  std::swap(chunks[0], chunks[1]);
  EXPECT_THAT(std::string(replica_->StageAnchor(7, chunks, {}, DigestOf(3)).message()), HasSubstr("chunk 0: expected"));
  EXPECT_EQ(replica_->version(), 0);
}

TEST_F(ReplicaTest, CommittedAnchorKeepsTheResidualAndRefusesWhatWasUnresolved) {
  config_.codec = {core::CodecId::kSign, core::CodecId::kFloat32, 1, 0};
  for (const bool keeps : {true, false}) {
    first_ = {1, 1, 1};
    Make();
    first_ = {0.5f, 0.25f, 0.75f};
    Send();
    replica_->Resolve(/*merged=*/true);
    const std::vector<uint32_t> residual = Bits(replica_->Arrays().residual);
    const double norm = replica_->ResidualNorm();
    ASSERT_GT(norm, 0);
    Send();
    ASSERT_TRUE(replica_->Arrays().pending);
    ASSERT_TRUE(replica_->StageAnchor(7, AnchorOf(3, 1), {}, DigestOf(3)).ok());
    EXPECT_TRUE(replica_->Arrays().pending);
    replica_->CommitAnchor(keeps);
    EXPECT_FALSE(replica_->Arrays().pending);
    EXPECT_TRUE(replica_->Arrays().next_residual.empty());
    EXPECT_EQ(replica_->ResidualNorm(), keeps ? norm : 0);
    EXPECT_EQ(Bits(replica_->Arrays().residual) == residual, keeps);
  }
}

// ---- Memory that was lent before ----

// Arrays of the pool hold anything at first: a replica that takes them has the same bits, padding too, as one whose
// pool is new.
TEST_F(ReplicaTest, WhatAPooledArrayHeldBeforeIsInNoBitOfIt) {
  config_.codec = {core::CodecId::kSign, core::CodecId::kFloat32, 1, 0};
  const core::OuterParameters outer = {.lr = 0.7f, .momentum = 0.9f};
  for (const float stale : {std::numeric_limits<float>::quiet_NaN(), 1e30f}) {
    core::BufferPool used, clean;
    const auto spoil = [&] {
      std::vector<core::Buffer> buffers(8);
      for (core::Buffer& buffer : buffers) {
        buffer = used.Take(map_.fragment(0).padded_values());
        std::ranges::fill(buffer.values(), stale);
      }
    };
    spoil();
    const std::unique_ptr<Replica> spoiled = New(&used), fresh = New(&clean);
    for (Replica* replica : {spoiled.get(), fresh.get()}) replica->SetInitial(Theta());
    for (uint64_t round = 1; round <= 4; ++round) {
      if (round == 3) {
        spoil();
        const auto chunks = AnchorOf(0.25f, 0.5f);
        for (Replica* replica : {spoiled.get(), fresh.get()}) {
          ASSERT_TRUE(replica->StageAnchor(9, chunks, {}, DigestOf(0.25f)).ok());
        }
        spoiled->CommitAnchor(/*keep_residual=*/true);
        fresh->CommitAnchor(/*keep_residual=*/true);
      }
      spoil();
      core::Buffer staging = used.Take(map_.fragment(0).padded_values());
      std::ranges::fill(staging.values(), stale);
      std::vector<float> theta = Random(100 + round);
      const std::vector<float> update = Random(round);
      for (const core::TensorPlace& place : map_.fragment(0).tensors) {
        std::ranges::copy(PartOf(std::span(theta), place), PartOf(staging.values(), place).begin());
      }
      spoil();
      const auto sent = spoiled->EncodeContribution(staging.values()), expected = fresh->EncodeContribution(theta);
      ASSERT_TRUE(sent.ok() && expected.ok()) << sent.status();
      EXPECT_EQ(*sent, *expected);
      spoiled->Resolve(round != 2);
      fresh->Resolve(round != 2);
      spoil();
      ASSERT_TRUE(spoiled->TakeUpdate(outer, UpdateOf(update), {}, /*keep_step=*/true).ok());
      ASSERT_TRUE(fresh->TakeUpdate(outer, UpdateOf(update), {}, /*keep_step=*/true).ok());
      EXPECT_EQ(spoiled->Held().held.anchor_digest, fresh->Held().held.anchor_digest);
      EXPECT_EQ(Bits(spoiled->step().values), Bits(fresh->step().values));
      EXPECT_EQ(Bits(spoiled->Arrays().momentum), Bits(fresh->Arrays().momentum));
      EXPECT_EQ(Bits(spoiled->Arrays().residual), Bits(fresh->Arrays().residual));
      EXPECT_EQ(spoiled->ResidualNorm(), fresh->ResidualNorm());
      for (const core::TensorPlace& place : map_.fragment(0).tensors) {
        const int64_t end = (place.first_unit + place.units()) * core::kUnitValues;
        EXPECT_EQ(spoiled->anchor()[end - 1], 0);
        EXPECT_EQ(spoiled->step().values[end - 1], 0);
      }
      spoiled->ReleaseStep();
      fresh->ReleaseStep();
    }
  }
}

// A replica that goes on from what another one held: what a checkpoint keeps.

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
