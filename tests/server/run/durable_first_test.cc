// Nothing leaves the coordinator before it is durable: each test holds the journal, and looks at what is said
// meanwhile.
#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include "tests/server/run/direct_coordinator.h"

namespace causeway::server {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class Follower final : public ShardPeer {
 public:
  void Send(const v1::MembershipUpdate& update) override {
    core::MutexLock lock(mutex_);
    updates_.push_back(update);
  }
  std::vector<v1::MembershipUpdate> updates() const {
    core::MutexLock lock(mutex_);
    return updates_;
  }

 private:
  mutable core::Mutex mutex_;
  std::vector<v1::MembershipUpdate> updates_ ABSL_GUARDED_BY(mutex_);
};

TEST(DurableFirst, VerdictWaitsForTheContribution) {
  DirectCoordinator run;
  run.Start();
  PendingVerdict verdict;
  {
    const HeldJournal held(*run.journal);
    verdict = run.Contribute("a", 0);
    EXPECT_FALSE(verdict.given());
  }
  run.Settle();
  EXPECT_TRUE(verdict.admitted());
}

TEST(DurableFirst, VerdictOfARepeatWaitsForTheFirstOne) {
  DirectCoordinator run;
  run.Start();
  PendingVerdict first, repeat;
  {
    const HeldJournal held(*run.journal);
    first = run.Contribute("a", 0);
    repeat = run.Contribute("a", 0);
    EXPECT_FALSE(repeat.given());
  }
  run.Settle();
  EXPECT_TRUE(first.admitted());
  EXPECT_TRUE(repeat.admitted());
}

TEST(DurableFirst, UpdateBeginsWhenTheDecisionToMergeIsDurable) {
  DirectCoordinator run;
  run.Start();
  {
    const HeldJournal held(*run.journal);
    for (const char* site : {"a", "b"}) run.Contribute(site, 0);
    EXPECT_EQ(run.coordinator->Status().rounds_decided, 1);
    v1::DownloadRequest request = DirectCoordinator::RequestOf("a", 0);
    request.set_update_base(0);
    const auto download = run.coordinator->transfers().BeginDownload(request, [] {});
    EXPECT_FALSE(download->source->Header([] {}));
    EXPECT_EQ(run.coordinator->Describe().versions(0), 0);
  }
  EXPECT_EQ(run.TakeUpdate(0, 0).header.version, 1);
}

TEST(DurableFirst, WelcomeWaitsForTheSiteAndRefusalForWhatItSpeaksOf) {
  DirectCoordinator run;
  auto held = std::make_unique<const HeldJournal>(*run.journal);
  RecordedPeer& welcomed = run.Join("a");
  RecordedPeer& refused = run.Join("b", [](v1::Join& join) { join.mutable_context()->set_run_id("other"); });
  EXPECT_THAT(welcomed.sent(), IsEmpty());
  EXPECT_THAT(refused.sent(), IsEmpty());
  EXPECT_FALSE(refused.closed());
  held.reset();
  run.Settle();
  EXPECT_THAT(welcomed.kinds(), ElementsAre("welcome", "seed_request", "notice"));
  EXPECT_THAT(refused.kinds(), ElementsAre("refused"));
  EXPECT_TRUE(refused.closed());
}

TEST(DurableFirst, EntryWaitsForThePlaceInTheSchedule) {
  DirectCoordinator run;
  for (const char* site : {"a", "b"}) run.Join(site);
  run.Seed("a");
  {
    const HeldJournal held(*run.journal);
    for (const char* site : {"a", "b"}) run.Ready(site);
    EXPECT_EQ(run.StatusOf("a").state, core::SiteState::kTraining);
    EXPECT_THAT(run.peer["a"]->kinds(), Not(Contains("entry")));
  }
  run.Settle();
  EXPECT_THAT(run.peer["a"]->kinds(), Contains("entry"));
  EXPECT_THAT(run.peer["b"]->kinds(), Contains("entry"));
}

TEST(DurableFirst, StreamOfASiteThatLeavesEndsWhenThatIsDurable) {
  DirectCoordinator run;
  run.Start();
  RecordedPeer& leaves = *run.peer["a"];
  {
    const HeldJournal held(*run.journal);
    run.Leave("a");
    EXPECT_FALSE(leaves.closed());
  }
  run.Settle();
  EXPECT_TRUE(leaves.closed());
  run.Restart();
  EXPECT_EQ(run.StatusOf("a").state, core::SiteState::kGone);
  EXPECT_EQ(run.StatusOf("a").reason, "it was asked to");
}

TEST(DurableFirst, JournalThatFailsGivesNoVerdictAndTheCoordinatorSaysWhy) {
  DirectCoordinator run;
  run.Start();
  run.journal->Commit({.decided = {{.fragment = 0, .base = 0, .contributors = {{"c", 0, 1}}}}});  // never admitted
  const PendingVerdict verdict = run.Contribute("a", 0);
  run.Settle();
  EXPECT_FALSE(verdict.given());
  EXPECT_FALSE(run.coordinator->status().ok());
  EXPECT_THAT(run.coordinator->Status().failure, HasSubstr("contribution of c"));
  EXPECT_FALSE(run.coordinator->operators().Drain("b").ok());
  EXPECT_FALSE(run.coordinator->Finish().ok());
}

TEST(DurableFirst, ShardIsToldOfASiteWhenThatIsDurable) {
  DirectCoordinator run(ConfigForTest(), kLead);
  const auto follower = std::make_shared<Follower>();
  v1::Context context = ContextForTest("");
  context.set_shard(1);
  context.set_num_shards(2);
  ASSERT_TRUE(run.coordinator->shards().BeginFollow(context, follower).ok());
  run.Settle();
  ASSERT_EQ(follower->updates().size(), 1u);
  EXPECT_EQ(follower->updates()[0].run_config(), "the config");
  {
    const HeldJournal held(*run.journal);
    run.Join("a");
    EXPECT_EQ(follower->updates().size(), 1u);
  }
  run.Settle();
  ASSERT_EQ(follower->updates().size(), 2u);
  const v1::MembershipUpdate update = follower->updates()[1];
  EXPECT_EQ(update.members(0).site(), "a");
  EXPECT_EQ(update.generation(), 1u);
  EXPECT_EQ(update.run_config(), "") << "it has that from the first";
  run.coordinator->shards().EndFollow(follower.get());
  run.Join("b");
  run.Settle();
  EXPECT_EQ(follower->updates().size(), 2u) << "its stream is over";
}

TEST(DurableFirst, ReportOfAShardTellsOfRoundsThatAreDurable) {
  DirectCoordinator run(ConfigForTest(), kSecond);
  v1::MembershipUpdate update = UpdateWith(run.map, "a", 1);
  v1::Member* member = update.mutable_members(0);
  update.set_seeder("a");
  run.coordinator->shards().Follow(update);
  run.Join("a", [](v1::Join& join) { join.set_stay(1); });
  run.Seed("a");
  run.Settle();
  EXPECT_TRUE(run.coordinator->shards().Report().seeded());
  member->set_state(static_cast<uint32_t>(core::SiteState::kTraining));
  for (int p = 0; p < 2; ++p) member->add_first_versions(0);
  update.set_started(true);
  update.clear_seeder();
  run.coordinator->shards().Follow(update);
  ASSERT_TRUE(run.coordinator->status().ok()) << run.coordinator->status();
  {
    const HeldJournal held(*run.journal);
    run.Contribute("a", 1);
    EXPECT_EQ(run.coordinator->Status().rounds_decided, 1);
    EXPECT_EQ(run.coordinator->shards().Report().versions(1), 0);
  }
  run.Settle();
  EXPECT_THAT(run.coordinator->shards().Report().versions(), ElementsAre(0, 1));
}

}  // namespace
}  // namespace causeway::server
