#include "worker/sync/checkpoint_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/formats/temporary_folder.h"

namespace causeway::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const CheckpointIdentity kIdentity = {.run = "run", .site = "eu", .session = "5e551071", .lineage = "11"};

class CheckpointStoreTest : public ::testing::Test {
 protected:
  absl::Status Save(CheckpointStore& store, core::Step step, int64_t keep = 2) {
    checkpoint_.step = step;
    return store.Save(
        kIdentity, checkpoint_,
        [](const std::string& path) { return std::ofstream(path) << "θ" ? absl::OkStatus() : absl::AbortedError(""); },
        keep);
  }

  void FillFragment() {
    FragmentCheckpoint& fragment = checkpoint_.fragments.emplace_back();
    fragment = {.version = 8, .applied = 7, .first = 2, .resolved = 6, .merged = true, .sites = {"eu", "us"}};
    fragment.merged_amount = {.tokens = 30, .steps = 3};
    fragment.sent = UnresolvedContribution{
        .base = 7,
        .amount = {.tokens = 50, .steps = 5},
        .weight = {.tokens = 20, .steps = 2},
        .chunks = std::make_shared<const std::vector<std::string>>(std::vector<std::string>{"one", std::string(3, 0)})};
    fragment.arrays = {.anchor = anchor_, .momentum = momentum_, .staging = staging_};
    fragment.arrays.last_outer = {.lr = 0.1f, .momentum = 0.9f};
    fragment.arrays.pending = true;
  }

  const TemporaryFolder folder_;
  std::vector<float> anchor_ = {1, -0.0f}, momentum_ = {2, 0x1p-149f}, staging_ = {3, 0.1f};
  SyncCheckpoint checkpoint_ = {.trained = {.tokens = 70, .steps = 7}, .sites = {"eu", "us"}};
};

TEST_F(CheckpointStoreTest, NothingIsThereAtFirst) {
  auto store = CheckpointStore::Open(folder_ / "new");
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_FALSE((*store)->Load("run", "eu")->has_value());
  EXPECT_EQ((*store)->LoadSession("run", "eu"), "");
}

TEST_F(CheckpointStoreTest, ComesBackAsItWasToTheLastBit) {
  FillFragment();
  auto store = *CheckpointStore::Open(folder_.path());
  ASSERT_TRUE(Save(*store, 42).ok());
  const auto loaded = store->Load("run", "eu");
  ASSERT_TRUE(loaded.ok() && loaded->has_value()) << loaded.status();
  EXPECT_EQ((*loaded)->identity, kIdentity);
  const SyncCheckpoint& sync = (*loaded)->sync;
  EXPECT_EQ(sync.step, 42);
  EXPECT_EQ(sync.trained.tokens, 70);
  EXPECT_THAT(sync.sites, ElementsAre("eu", "us"));
  ASSERT_EQ(sync.fragments.size(), 1u);
  const FragmentCheckpoint& fragment = sync.fragments[0];
  EXPECT_THAT((std::vector<core::Version>{fragment.version, fragment.applied, fragment.first, fragment.resolved}),
              ElementsAre(8, 7, 2, 6));
  EXPECT_TRUE(fragment.merged && fragment.arrays.pending && !fragment.sent->admitted);
  EXPECT_EQ(fragment.sent->base, 7);
  EXPECT_EQ(fragment.sent->weight.steps, 2);
  EXPECT_THAT(*fragment.sent->chunks, ElementsAre("one", std::string(3, 0)));
  EXPECT_EQ(fragment.arrays.last_outer, (core::OuterParameters{0.1f, 0.9f}));
  EXPECT_EQ(std::memcmp(fragment.arrays.anchor.data(), anchor_.data(), sizeof(float) * 2), 0);
  EXPECT_EQ(std::memcmp(fragment.arrays.momentum.data(), momentum_.data(), sizeof(float) * 2), 0);
  EXPECT_THAT(fragment.arrays.residual, ElementsAre());
  EXPECT_TRUE(std::filesystem::exists((*loaded)->trainer_path));
}

TEST_F(CheckpointStoreTest, TheNewestCountsAndOldOnesGo) {
  auto store = *CheckpointStore::Open(folder_.path());
  for (core::Step step : {30, 40, 20}) ASSERT_TRUE(Save(*store, step).ok());  // a joiner may be given an earlier step
  EXPECT_EQ((*store->Load("run", "eu"))->sync.step, 20);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "000001"));
  EXPECT_TRUE(std::filesystem::exists(folder_ / "000002"));
}

TEST_F(CheckpointStoreTest, OneThatFailsLeavesTheOthers) {
  auto store = *CheckpointStore::Open(folder_.path());
  ASSERT_TRUE(Save(*store, 30).ok());
  const auto fails = [](const std::string&) { return absl::ResourceExhaustedError("disk full"); };
  EXPECT_EQ(store->Save(kIdentity, checkpoint_, fails, 1).message(), "disk full");
  EXPECT_EQ((*store->Load("run", "eu"))->sync.step, 30);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "000002.tmp"));
}

TEST_F(CheckpointStoreTest, OfAnotherSiteIsRefused) {
  auto store = *CheckpointStore::Open(folder_.path());
  ASSERT_TRUE(Save(*store, 30).ok());
  EXPECT_THAT(std::string(store->Load("run", "us").status().message()),
              HasSubstr("holds checkpoints of site eu in run run; this is site us in run run"));
}

TEST_F(CheckpointStoreTest, DamagedOneIsNamed) {
  auto store = *CheckpointStore::Open(folder_.path());
  ASSERT_TRUE(Save(*store, 30).ok());
  folder_.Write("000001/sync.json", "{\"format\": 1}");
  const absl::Status status = store->Load("run", "eu").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("000001/sync.json is not what a worker writes"));
}

TEST_F(CheckpointStoreTest, SecondWorkerIsKeptOut) {
  const auto store = *CheckpointStore::Open(folder_.path());
  EXPECT_THAT(std::string(CheckpointStore::Open(folder_.path()).status().message()),
              HasSubstr("another worker runs on"));
}

TEST_F(CheckpointStoreTest, SessionIsRemembered) {
  auto store = *CheckpointStore::Open(folder_.path());
  ASSERT_TRUE(store->SaveSession(kIdentity).ok());
  EXPECT_EQ(store->LoadSession("run", "eu"), "5e551071");
  EXPECT_EQ(store->LoadSession("other", "eu"), "");
}

}  // namespace
}  // namespace causeway::worker
