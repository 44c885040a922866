#include "worker/sync/fragment_sync.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "core/digest.h"

namespace causeway::worker {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// One fragment of two tensors, each smaller than a unit.
class FragmentSyncTest : public ::testing::Test {
 protected:
  FragmentSyncTest() {
    config_.run_id = "test";
    config_.codec = {core::CodecId::kFloat32, core::CodecId::kFloat32, 0, 0};
    Make();
  }

  void Make() {
    sync_ = std::make_unique<FragmentSync>(map_, 0, config_, std::vector<std::span<float>>{first_, second_});
    sync_->SetAnchorFromLocal();
  }

  // An update's chunks that carry `gradient` for every value.
  std::vector<std::string> UpdateOf(float gradient) const {
    std::vector<std::string> chunks;
    const std::vector<float> values(core::kUnitValues, gradient);
    for (const codecs::ChunkSpan& span : codecs::PlanChunks(map_.fragment(0), codecs::DownLeg(config_))) {
      chunks.push_back(*codecs::EncodeChunk(span, std::span(values).first(span.values), {}));
    }
    return chunks;
  }

  // What the coordinator would decode from a contribution.
  std::vector<float> Decoded(const std::vector<std::string>& chunks) const {
    std::vector<float> all;
    for (const std::string& bytes : chunks) {
      const codecs::ChunkView view = *codecs::ChunkView::Parse(bytes);
      std::vector<float> values(view.span().values);
      view.Decode(view.span().first_unit, values);
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }

  std::vector<float> Send() {
    sync_->CopyLocal();
    return Decoded(*sync_->EncodeContribution());
  }

  std::vector<float> first_ = {1, 1, 1};
  std::vector<float> second_ = {2, 2};
  core::FragmentMap map_{{{.name = "first", .shape = {3}, .layer = 0}, {.name = "second", .shape = {2}, .layer = 0}},
                         {{0, 1}}};
  core::RunConfig config_;
  std::unique_ptr<FragmentSync> sync_;
};

TEST_F(FragmentSyncTest, OuterGradientIsAnchorMinusLocal) {
  first_[1] = 0.75f;  // trained downwards: a positive gradient
  second_[0] = 2.5f;
  EXPECT_THAT(Send(), ElementsAre(0, 0.25f, 0, -0.5f, 0));
}

TEST_F(FragmentSyncTest, WhatTrainsAfterTheCopyIsNotSent) {
  sync_->CopyLocal();
  first_[0] = 100;
  EXPECT_THAT(Decoded(*sync_->EncodeContribution()), Each(0.0f));
}

TEST_F(FragmentSyncTest, UpdateTakesTheOuterStepOnTheAnchorAndLeavesLocalParameters) {
  ASSERT_TRUE(sync_->TakeUpdate({.lr = 0.5f, .momentum = 0.5f}, UpdateOf(1)).ok());
  EXPECT_EQ(sync_->version(), 1);
  EXPECT_EQ(sync_->anchor()[0], 0.25f);  // v = 1, s = 1.5, W = 1 − 0.75
  EXPECT_EQ(first_[0], 1);
  sync_->Mix(0.5f);
  EXPECT_EQ(first_[0], 0.625f);
}

TEST_F(FragmentSyncTest, UpdateWithoutOurContributionMovesAnchorAndLocalAlike) {
  first_[0] = 0.5f;
  ASSERT_TRUE(sync_->TakeUpdate({.lr = 0.5f, .momentum = 0.5f}, UpdateOf(1)).ok());
  sync_->Rebase();
  EXPECT_EQ(sync_->anchor()[0] - first_[0], 0.5f);  // Δ as before
  EXPECT_EQ(first_[0], -0.25f);
}

TEST_F(FragmentSyncTest, RefusedContributionStaysWholeInTheSite) {
  config_.codec = {core::CodecId::kSign, core::CodecId::kFloat32, 1, 0};
  Make();
  first_ = {0.5f, 0.25f, 0.75f};
  const std::vector<float> refused = Send();
  sync_->Resolve(/*merged=*/false);
  EXPECT_EQ(sync_->ResidualNorm(), 0);
  EXPECT_EQ(Send(), refused);  // nothing of it was taken away, nothing was added
  sync_->Resolve(/*merged=*/true);
  EXPECT_GT(sync_->ResidualNorm(), 0);
}

TEST_F(FragmentSyncTest, NonFiniteValueNamesItsTensorAndIndexAndIsNotSent) {
  second_[1] = std::numeric_limits<float>::quiet_NaN();
  sync_->CopyLocal();
  const auto chunks = sync_->EncodeContribution();
  EXPECT_EQ(chunks.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(chunks.status().message()), HasSubstr("outer gradient of second is nan at index 1"));
}

TEST_F(FragmentSyncTest, DamagedUpdateLeavesAnchorUntouched) {
  std::vector<std::string> chunks = UpdateOf(1);
  chunks[1].back() ^= 1;
  const uint64_t before = sync_->Digest();
  EXPECT_FALSE(sync_->TakeUpdate({}, chunks).ok());
  EXPECT_FALSE(sync_->TakeUpdate({}, {chunks[0]}).ok());
  EXPECT_EQ(sync_->Digest(), before);
  EXPECT_EQ(sync_->version(), 0);
}

TEST_F(FragmentSyncTest, AnchorDownloadReplacesAnchorMomentumAndResidual) {
  std::vector<std::string> chunks = UpdateOf(3);                              // W = 3
  for (std::string& chunk : UpdateOf(1)) chunks.push_back(std::move(chunk));  // v = 1
  ASSERT_TRUE(sync_->SetAnchor(7, chunks, FragmentSync::Local::kReset).ok());
  sync_->CopyAnchorToLocal();
  EXPECT_THAT(first_, Each(3.0f));
  EXPECT_EQ(sync_->version(), 7);
  ASSERT_TRUE(sync_->TakeUpdate({.lr = 1, .momentum = 0.5f}, UpdateOf(0)).ok());
  EXPECT_EQ(sync_->anchor()[0], 2.75f);  // v = 0.5, s = 0.25
}

TEST_F(FragmentSyncTest, InitialParametersAreWhatTheSiteHolds) {
  EXPECT_THAT(Decoded(*sync_->EncodeInitial()), ElementsAre(1, 1, 1, 2, 2));
}

}  // namespace
}  // namespace causeway::worker
