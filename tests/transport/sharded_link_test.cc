#include "transport/sharded_link.h"

#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

namespace causeway::transport {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A link that does each call and remembers it.
class FakeShardLink final : public ShardLink {
 public:
  void Resume(const core::SessionId& session, const Remembered& of_coordinator) override {
    session_ = session;
    remembered_ = of_coordinator;
  }
  const core::SessionId& session() const override { return session_; }
  Remembered remembered() const override { return remembered_; }
  absl::StatusOr<RunDescription> Describe(const std::function<bool()>&) override { return description; }
  void Start(const core::Manifest&, LinkListener* to_tell) override { listener = to_tell; }
  void SendReady() override { ++ready; }
  bool SendProgress(const core::Progress& progress) override {
    steps.push_back(progress.step);
    return true;
  }
  core::LinkProgress Measured() const override { return {1, 2, 0.5, 3}; }
  void Upload(UploadRequest request) override { uploads.push_back(request.fragment); }
  void Download(DownloadRequest request) override { downloads.push_back(request.fragment); }
  void Rejoin() override { ++rejoined; }
  void Leave(bool finished, const std::string&) override { left = finished ? "finished" : "left"; }
  void Hurry() override {}
  void JoinAs(int64_t new_stay) override { stay = new_stay; }
  void DropTransfers() override { ++dropped; }

  LinkListener* listener = nullptr;
  absl::StatusOr<RunDescription> description = RunDescription{"run", "config"};
  int ready = 0, rejoined = 0, dropped = 0;
  int64_t stay = 0;
  std::vector<core::Step> steps;
  std::vector<core::FragmentId> uploads, downloads;
  std::string left;

 private:
  core::SessionId session_ = "s";
  Remembered remembered_{"l", ""};
};

class Listener final : public LinkListener {
 public:
  Standing GetStanding() override { return standing; }
  void OnWelcome(const Welcome& welcome) override { welcomes.push_back(welcome); }
  void OnSeedRequest() override { ++seed_requests; }
  void OnEntry(const core::Entry& entry) override { entries.push_back(entry); }
  void OnNotice(const std::string& reason) override { notices.push_back(reason); }
  void OnDrain(const std::string&) override { ++drains; }
  void OnHold(bool held) override { holds.push_back(held); }
  void OnFailure(const absl::Status& status) override { failure = status; }

  Standing standing;
  std::vector<Welcome> welcomes;
  std::vector<core::Entry> entries;
  std::vector<std::string> notices;
  std::vector<bool> holds;
  int seed_requests = 0, drains = 0;
  absl::Status failure;
};

// Two shards of a run with three fragments.
class ShardedLinkTest : public ::testing::Test {
 protected:
  ShardedLinkTest() {
    std::vector<std::unique_ptr<ShardLink>> links;
    for (FakeShardLink*& shard : shards_) {
      auto link = std::make_unique<FakeShardLink>();
      shard = link.get();
      links.push_back(std::move(link));
    }
    link_ = std::make_unique<ShardedLink>(std::move(links));
  }

  void Start() { link_->Start({}, &site_); }

  void Welcomed(int shard, int64_t stay, std::vector<core::Version> admitted, bool resumed = false) {
    shards_[shard]->listener->OnWelcome(
        {.resumed = resumed, .kept_transfers = resumed, .stay = stay, .map = {}, .last_admitted = std::move(admitted)});
  }
  void WelcomedByBoth(int64_t stay) {
    Welcomed(0, stay, {-1, -1, -1});
    Welcomed(1, stay, {-1, -1, -1});
  }
  void Placed(int shard, int64_t stay, std::vector<core::Version> first) {
    shards_[shard]->listener->OnEntry(
        {.step = shard == 0 ? 30 : 0, .versions = first, .first_versions = first, .sites = {"a"}, .stay = stay});
  }

  Listener site_;
  FakeShardLink* shards_[2];
  std::unique_ptr<ShardedLink> link_;
};

TEST_F(ShardedLinkTest, TransfersGoToTheOwnerOfTheFragment) {
  for (core::FragmentId p = 0; p < 3; ++p) {
    link_->Upload({.fragment = p});
    link_->Download({.fragment = p});
  }
  EXPECT_THAT(shards_[0]->uploads, ElementsAre(0, 2));
  EXPECT_THAT(shards_[1]->uploads, ElementsAre(1));
  EXPECT_THAT(shards_[0]->downloads, ElementsAre(0, 2));
  EXPECT_THAT(shards_[1]->downloads, ElementsAre(1));
}

TEST_F(ShardedLinkTest, TheOthersJoinWithTheSessionAndTheStayThatShardZeroHasGiven) {
  link_->Resume("mine", {"x,y", "p q,"});
  EXPECT_EQ(shards_[0]->remembered().lineage, "x");
  EXPECT_EQ(shards_[0]->remembered().proofs, "p q");
  EXPECT_EQ(shards_[1]->remembered().lineage, "y");
  EXPECT_EQ(shards_[1]->remembered().proofs, "");
  EXPECT_EQ(link_->remembered().lineage, "x,y");
  EXPECT_EQ(link_->remembered().proofs, "p q,");
  EXPECT_EQ(shards_[1]->session(), "mine");
  Start();
  EXPECT_EQ(shards_[1]->listener, nullptr);
  Welcomed(0, 3, {-1, -1, -1});
  EXPECT_NE(shards_[1]->listener, nullptr);
  EXPECT_EQ(shards_[1]->stay, 3);
}

TEST_F(ShardedLinkTest, TheSiteIsWelcomedOnceEveryShardHasSaidWhatItAdmitted) {
  Start();
  Welcomed(0, 1, {5, -1, 4});
  EXPECT_THAT(site_.welcomes, IsEmpty());
  Welcomed(1, 1, {-1, 7, -1});
  ASSERT_THAT(site_.welcomes, SizeIs(1));
  EXPECT_THAT(site_.welcomes[0].last_admitted, ElementsAre(5, 7, 4));
  EXPECT_EQ(site_.welcomes[0].lineage, "l,");
}

TEST_F(ShardedLinkTest, WhatAShardSaysOfAnEarlierStayIsNotHeard) {
  Start();
  WelcomedByBoth(1);
  Welcomed(0, 2, {-1, -1, -1});
  Welcomed(1, 1, {-1, 9, -1});
  EXPECT_THAT(site_.welcomes, SizeIs(1));
  Placed(0, 2, {1, 0, 1});
  Placed(1, 1, {0, 9, 0});
  EXPECT_THAT(site_.entries, IsEmpty());
}

TEST_F(ShardedLinkTest, ASeedRequestComesAfterTheWelcome) {
  Start();
  Welcomed(0, 1, {});
  shards_[0]->listener->OnSeedRequest();
  EXPECT_EQ(site_.seed_requests, 0);
  Welcomed(1, 1, {});
  EXPECT_EQ(site_.seed_requests, 1);
}

TEST_F(ShardedLinkTest, APlaceIsToldOnceAndHasTheOwnersFirstVersions) {
  Start();
  WelcomedByBoth(1);
  Placed(1, 1, {0, 6, 0});
  EXPECT_THAT(site_.entries, IsEmpty());
  Placed(0, 1, {4, 0, 5});
  Placed(1, 1, {0, 6, 0});  // again, on a new stream
  ASSERT_THAT(site_.entries, SizeIs(1));
  EXPECT_EQ(site_.entries[0].step, 30);
  EXPECT_THAT(site_.entries[0].first_versions, ElementsAre(4, 6, 5));
}

TEST_F(ShardedLinkTest, ANewStayDropsTheTransfersOfAllLinks) {
  Start();
  WelcomedByBoth(1);
  const int before = shards_[1]->dropped;
  Welcomed(0, 2, {-1, -1, -1});
  EXPECT_GT(shards_[1]->dropped, before);
  EXPECT_EQ(shards_[1]->stay, 2);
}

TEST_F(ShardedLinkTest, ALinkThatComesBackInTheSameStayDropsNothing) {
  Start();
  WelcomedByBoth(1);
  const int before = shards_[1]->dropped;
  Welcomed(1, 1, {-1, -1, -1}, /*resumed=*/true);
  Welcomed(0, 1, {-1, -1, -1}, /*resumed=*/true);
  EXPECT_EQ(shards_[1]->dropped, before);
  EXPECT_THAT(site_.welcomes, SizeIs(2));
}

TEST_F(ShardedLinkTest, AProcessThatGoesOnFromItsCheckpointWaitsForShardZeroAlone) {
  site_.standing = {.versions = {3, 3, 3}, .from_checkpoint = true};
  Start();
  Welcomed(0, 1, {2, -1, 2}, /*resumed=*/true);
  EXPECT_THAT(site_.welcomes, SizeIs(1));
  site_.standing.from_checkpoint = false;
  EXPECT_TRUE(shards_[1]->listener->GetStanding().from_checkpoint) << "shard 1 has not heard of it";
  Welcomed(1, 1, {-1, 2, -1}, /*resumed=*/true);
  EXPECT_FALSE(shards_[1]->listener->GetStanding().from_checkpoint);
}

TEST_F(ShardedLinkTest, WhatIsVoidAtOneShardCostsThePlace) {
  site_.standing = {.versions = {3, 3, 3}};
  Start();
  WelcomedByBoth(1);
  shards_[1]->listener->OnWelcome({.resumed = true, .same_lineage = false, .stay = 1, .map = {}, .last_admitted = {}});
  EXPECT_EQ(shards_[0]->rejoined, 1);
  EXPECT_THAT(shards_[0]->listener->GetStanding().versions, IsEmpty());
}

TEST_F(ShardedLinkTest, AnotherModelCostsTheTransfersOfAllLinksAndIsTold) {
  site_.standing = {.joining = true};
  Start();
  for (FakeShardLink* shard : shards_) {
    shard->listener->OnWelcome({.kept_transfers = true, .stay = 1, .generation = 1, .map = {}, .last_admitted = {}});
  }
  ASSERT_THAT(site_.welcomes, SizeIs(1));
  EXPECT_EQ(site_.welcomes[0].generation, 1u);
  EXPECT_TRUE(site_.welcomes[0].kept_transfers);
  const int before = shards_[0]->dropped;
  shards_[0]->listener->OnWelcome({.kept_transfers = true, .stay = 2, .generation = 2, .map = {}, .last_admitted = {}});
  shards_[1]->listener->OnWelcome(
      {.kept_transfers = false, .stay = 2, .generation = 2, .map = {}, .last_admitted = {}});
  ASSERT_THAT(site_.welcomes, SizeIs(2));
  EXPECT_EQ(site_.welcomes[1].generation, 2u);
  EXPECT_FALSE(site_.welcomes[1].kept_transfers);
  EXPECT_GT(shards_[0]->dropped, before);
}

TEST_F(ShardedLinkTest, AShardThatHasAnotherModelLaterCostsTheStay) {
  site_.standing = {.joining = true};
  Start();
  for (FakeShardLink* shard : shards_) {
    shard->listener->OnWelcome({.kept_transfers = true, .stay = 1, .generation = 1, .map = {}, .last_admitted = {}});
  }
  shards_[1]->listener->OnWelcome({.resumed = true, .stay = 1, .generation = 2, .map = {}, .last_admitted = {}});
  EXPECT_EQ(shards_[0]->rejoined, 1);
  shards_[0]->listener->OnWelcome({.kept_transfers = true, .stay = 1, .generation = 1, .map = {}, .last_admitted = {}});
  ASSERT_THAT(site_.welcomes, SizeIs(2));
  EXPECT_FALSE(site_.welcomes[1].kept_transfers);
}

TEST_F(ShardedLinkTest, AShardOfBeforeSaysNoGenerationAndThatOfShardZeroCounts) {
  Start();
  shards_[0]->listener->OnWelcome({.kept_transfers = true, .stay = 1, .generation = 3, .map = {}, .last_admitted = {}});
  shards_[1]->listener->OnWelcome({.resumed = true, .kept_transfers = true, .stay = 1, .map = {}, .last_admitted = {}});
  ASSERT_THAT(site_.welcomes, SizeIs(1));
  EXPECT_EQ(site_.welcomes[0].generation, 3u);
}

TEST_F(ShardedLinkTest, WhatTheRunDoesIsShardZerosToTell) {
  Start();
  WelcomedByBoth(1);
  for (FakeShardLink* shard : shards_) {
    shard->listener->OnHold(true);
    shard->listener->OnNotice("why");
    shard->listener->OnDrain("asked");
  }
  EXPECT_THAT(site_.holds, ElementsAre(true));
  EXPECT_THAT(site_.notices, ElementsAre("why"));
  EXPECT_EQ(site_.drains, 1);
}

TEST_F(ShardedLinkTest, ProgressGoesToAllAndTheEndIsShardZeros) {
  Start();
  WelcomedByBoth(1);
  link_->SendProgress({.step = 8});
  link_->SendReady();
  EXPECT_THAT(shards_[1]->steps, ElementsAre(8));
  EXPECT_EQ(shards_[1]->ready, 0);
  link_->Leave(/*finished=*/true, "done");
  EXPECT_EQ(shards_[0]->left, "finished");
  EXPECT_EQ(shards_[1]->left, "left");
}

TEST_F(ShardedLinkTest, AFailureNamesItsShard) {
  Start();
  WelcomedByBoth(1);
  shards_[1]->listener->OnFailure(absl::PermissionDeniedError("no"));
  EXPECT_TRUE(absl::IsPermissionDenied(site_.failure));
  EXPECT_THAT(std::string(site_.failure.message()), HasSubstr("shard 1: no"));
}

TEST_F(ShardedLinkTest, ShardsOfDifferentRunsAreRefused) {
  shards_[1]->description = RunDescription{"other", "config"};
  const auto description = link_->Describe([] { return false; });
  EXPECT_TRUE(absl::IsPermissionDenied(description.status())) << description.status();
}

}  // namespace
}  // namespace causeway::transport
