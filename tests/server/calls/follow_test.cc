// How a shard follows shard 0: shard 0's end of the stream, and the thread at the other end that comes back for ever.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <deque>

#include "server/calls/gate.h"
#include "server/calls/reactors.h"
#include "server/run/membership_follower.h"
#include "tests/server/calls/called_stream.h"
#include "tests/server/run/direct_coordinator.h"

namespace causeway::server {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr core::Shard kLead{0, 2};
constexpr core::Shard kSecond{1, 2};

// ---- Shard 0's end ----

using FollowStream = CalledStream<v1::FollowMessage, v1::MembershipUpdate>;

class FollowReactorTest : public testing::Test {
 protected:
  void Open(FollowStream& stream) {
    stream.Bind(NewFollowReactor(run_.coordinator.get(), Gate::Open(), {}));
    stream.Deliver(First());
    run_.Settle();
  }
  static v1::FollowMessage First() {
    v1::FollowMessage message;
    *message.mutable_context() = ContextForTest("");
    message.mutable_context()->set_shard(1);
    message.mutable_context()->set_num_shards(2);
    return message;
  }
  static v1::FollowMessage Seeded() {
    v1::FollowMessage message;
    message.mutable_report()->set_seeded(true);
    for (int p = 0; p < 2; ++p) message.mutable_report()->add_versions(0);
    return message;
  }

  DirectCoordinator run_{ConfigForTest(), kLead};
};

TEST_F(FollowReactorTest, FirstUpdateHasTheConfigAndOfThoseThatWaitForAWriteOnlyTheLastIsSent) {
  FollowStream stream;
  auto held = std::make_unique<HeldJournal>(*run_.journal);
  stream.Bind(NewFollowReactor(run_.coordinator.get(), Gate::Open(), {}));
  stream.Deliver(First());
  run_.Join("a");
  held.reset();
  run_.Settle();
  ASSERT_THAT(stream.written(), SizeIs(1));
  EXPECT_EQ(stream.written()[0].run_config(), "the config");
  EXPECT_EQ(stream.written()[0].members_size(), 0);
  for (const char* site : {"b", "c"}) run_.Join(site);
  run_.Settle();
  EXPECT_THAT(stream.written(), SizeIs(1));
  stream.CompleteWrite();
  ASSERT_THAT(stream.written(), SizeIs(2));
  EXPECT_EQ(stream.written()[1].members_size(), 3);
  stream.CompleteWrite();
  EXPECT_FALSE(stream.writing()) << "the updates between are superfluous";
}

TEST_F(FollowReactorTest, ReportsAreHeardAndShardZeroWaitsForThem) {
  FollowStream stream;
  Open(stream);
  stream.CompleteWrites();
  for (const char* site : {"a", "b"}) run_.Join(site);
  run_.Seed("a");
  for (const char* site : {"a", "b"}) run_.Ready(site);
  run_.Settle();
  EXPECT_EQ(run_.coordinator->Status().state, "waiting");
  stream.Deliver(Seeded());
  run_.Settle();
  EXPECT_EQ(run_.coordinator->Status().state, "training");
  stream.CompleteWrites();
  EXPECT_TRUE(stream.written().back().started());
  EXPECT_EQ(stream.written().back().seeder(), "") << "all shards have the seed";
}

TEST_F(FollowReactorTest, SecondStreamOfAShardIsToldAllAnewAndTheFirstMayEnd) {
  FollowStream first;
  Open(first);
  run_.Join("a");
  run_.Settle();
  FollowStream second;
  Open(second);
  ASSERT_THAT(second.written(), SizeIs(1));
  EXPECT_EQ(second.written()[0].run_config(), "the config");
  EXPECT_EQ(second.written()[0].members(0).site(), "a");
  EXPECT_EQ(second.written()[0].generation(), 1u);
  first.Break();
  EXPECT_TRUE(first.finished()->ok());
  second.CompleteWrites();
  run_.Join("b");
  run_.Settle();
  EXPECT_THAT(second.written(), SizeIs(2));
}

TEST_F(FollowReactorTest, ShardWithASitesTokenIsRefused) {
  const TemporaryFolder folder;
  const auto gate = *Gate::Create(
      {.authorizer = {.site_tokens = folder.Write(
                          "tokens", "a 8ed3f6ad685b959ead7022518e1af76cd816f8e8ec7ccdda1ed4018e8f2223f8\n")},
       .clock = &run_.clock});
  FollowStream stream;
  stream.Bind(
      NewFollowReactor(run_.coordinator.get(), gate.get(), {.token = "alpha", .address = "", .call = "Follow"}));
  ASSERT_TRUE(stream.finished());
  EXPECT_EQ(stream.finished()->error_code(), grpc::StatusCode::PERMISSION_DENIED);
}

TEST(FollowReactor, ShardThatIsNotTheFirstRefusesAndLivesOn) {
  DirectCoordinator run(ConfigForTest(), kSecond);
  FollowStream stream;
  stream.Bind(NewFollowReactor(run.coordinator.get(), Gate::Open(), {}));
  v1::FollowMessage message;
  *message.mutable_context() = ContextForTest("");
  message.mutable_context()->set_shard(1);
  message.mutable_context()->set_num_shards(2);
  stream.Deliver(message);
  ASSERT_TRUE(stream.finished());
  EXPECT_THAT(stream.finished()->error_message(), HasSubstr("this is shard 1 of 2"));
  EXPECT_EQ(run.coordinator->Status().shard.index, 1);
}

// ---- The other end ----

// Shard 0 as the follower's wire has it: one stream after the other, each with what it brings and how it ends.
class LeadForTest {
 public:
  struct Stream {
    std::vector<v1::MembershipUpdate> updates;
    std::optional<grpc::Status> end;  // none: it stays open until it is cancelled
  };

  explicit LeadForTest(std::vector<Stream> streams) : streams_(streams.begin(), streams.end()) {}

  std::unique_ptr<transport::Wire> MakeWire() { return std::make_unique<LeadWire>(this); }
  // Blocks until the follower has sent that many messages, over all streams.
  std::vector<v1::FollowMessage> AwaitMessages(size_t count) {
    core::MutexLock lock(mutex_);
    lock.Wait(changed_, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return messages_.size() >= count; });
    return messages_;
  }

 private:
  class Call final : public transport::FollowCall {
   public:
    Call(LeadForTest* lead, Stream stream) : lead_(*lead), stream_(std::move(stream)) {}

    void WaitForInitialMetadata() override {}
    bool WritesDone() override { return true; }
    bool NextMessageSize(uint32_t*) override { return false; }
    bool Write(const v1::FollowMessage& message, grpc::WriteOptions) override {
      core::MutexLock lock(lead_.mutex_);
      lead_.messages_.push_back(message);
      lead_.changed_.NotifyAll();
      return true;
    }
    bool Read(v1::MembershipUpdate* update) override {
      if (next_ < stream_.updates.size()) {
        *update = stream_.updates[next_++];
        return true;
      }
      core::MutexLock lock(lead_.mutex_);
      lock.Wait(lead_.changed_,
                [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(lead_.mutex_) { return stream_.end || lead_.cancelled_; });
      return false;
    }
    grpc::Status Finish() override { return stream_.end.value_or(grpc::Status::CANCELLED); }

   private:
    LeadForTest& lead_;
    const Stream stream_;
    size_t next_ = 0;
  };

  class LeadWire final : public transport::Wire {
   public:
    explicit LeadWire(LeadForTest* lead) : lead_(*lead) {}

    grpc::Status Describe(const core::SiteId&, absl::FunctionRef<bool()>, v1::RunDescription&) override { return {}; }
    bool AwaitConnected(core::Clock::TimePoint) override { return true; }
    void Prepare(grpc::ClientContext&, transport::ControlCall&) override {}
    void Prepare(int, const std::string&, grpc::ClientContext&, transport::BulkCall&) override {}
    std::unique_ptr<transport::FollowCall> Follow(grpc::ClientContext&) override {
      core::MutexLock lock(lead_.mutex_);
      Stream stream;
      if (!lead_.streams_.empty()) {
        stream = std::move(lead_.streams_.front());
        lead_.streams_.pop_front();
      }
      return std::make_unique<Call>(&lead_, std::move(stream));
    }
    void Cancel(grpc::ClientContext&) override {
      core::MutexLock lock(lead_.mutex_);
      lead_.cancelled_ = true;
      lead_.changed_.NotifyAll();
    }
    void Redial(int) override {}
    std::unique_ptr<Timer> After(core::Clock::Duration, std::function<void()>) override { return nullptr; }

   private:
    LeadForTest& lead_;
  };

  core::Mutex mutex_;
  core::Condition changed_;
  std::deque<Stream> streams_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::FollowMessage> messages_ ABSL_GUARDED_BY(mutex_);
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

class FollowerTest : public testing::Test {
 protected:
  std::unique_ptr<MembershipFollower> Follow(LeadForTest& lead) {
    MembershipFollowerOptions options;
    options.lead = {"lead", 1};
    options.shard = kSecond;
    options.run_id = "test";
    return std::make_unique<MembershipFollower>(std::move(options), lead.MakeWire(), run_.coordinator.get());
  }

  DirectCoordinator run_{ConfigForTest(), kSecond};
};

TEST_F(FollowerTest, SaysWhoseShardItIsAndReportsWhatHasChanged) {
  v1::MembershipUpdate update = UpdateWith(run_.map, "a", 1);
  update.set_seeder("a");
  LeadForTest lead({{.updates = {update}}});
  const auto follower = Follow(lead);
  const v1::FollowMessage first = lead.AwaitMessages(1)[0];
  EXPECT_EQ(first.context().protocol(), transport::kProtocol);
  EXPECT_EQ(first.context().run_id(), "test");
  EXPECT_EQ(first.context().shard(), 1);
  EXPECT_EQ(first.context().num_shards(), 2);
  EXPECT_FALSE(first.report().seeded());
  v1::CoordinatorMessage answer;
  while (!answer.has_welcome()) {  // the update may not be here yet
    run_.Join("a", [](v1::Join& join) { join.set_stay(1); });
    run_.Settle();
    answer = run_.peer["a"]->sent().at(0);
  }
  run_.Seed("a");
  v1::FollowMessage later;
  for (size_t n = 1; !later.report().seeded(); ++n) {  // a report of the join may come before it
    later = lead.AwaitMessages(n + 1)[n];
    EXPECT_FALSE(later.has_context()) << "that of the first message stands";
  }
}

TEST_F(FollowerTest, ComesBackAfterAStreamThatBroke) {
  const grpc::Status away(grpc::StatusCode::UNAVAILABLE, "connection refused");
  LeadForTest lead({{.updates = {UpdateWith(run_.map, "a", 1)}, .end = grpc::Status::OK},
                    {.end = away},
                    {.updates = {UpdateWith(run_.map, "a", 1)}}});
  const auto follower = Follow(lead);
  for (const v1::FollowMessage& message : lead.AwaitMessages(3)) EXPECT_EQ(message.context().shard(), 1);
  EXPECT_TRUE(run_.coordinator->status().ok()) << run_.coordinator->status();
}

TEST_F(FollowerTest, ThatIsRefusedBeforeItHasFollowedEndsTheCoordinatorAndLaterGoesOn) {
  const grpc::Status refused(grpc::StatusCode::FAILED_PRECONDITION,
                             "expected a shard that follows shard 0, got shard 1 of 2");
  {
    LeadForTest lead({{.updates = {UpdateWith(run_.map, "a", 1)}, .end = grpc::Status::OK}, {.end = refused}, {}});
    const auto follower = Follow(lead);
    lead.AwaitMessages(3);
    EXPECT_TRUE(run_.coordinator->status().ok()) << "shard 0 may be an older one that is started by mistake";
  }
  LeadForTest lead({{.end = refused}});
  const auto follower = Follow(lead);
  lead.AwaitMessages(1);
  while (run_.coordinator->status().ok()) std::this_thread::yield();
  EXPECT_THAT(std::string(run_.coordinator->status().message()),
              HasSubstr("shard 0 at lead:1: expected a shard that follows shard 0, got shard 1 of 2"));
}

TEST_F(FollowerTest, UpdateOfAnotherRunIsTheCoordinatorsEnd) {
  LeadForTest lead({{.updates = {UpdateWith(run_.map, "a", 1, "other")}}});
  const auto follower = Follow(lead);
  while (run_.coordinator->status().ok()) std::this_thread::yield();
  EXPECT_THAT(std::string(run_.coordinator->status().message()), HasSubstr("expected run test, got other"));
}

}  // namespace
}  // namespace causeway::server
