// A site's control stream: what the reactor does with messages, writes and ends, in any order that they can come in.
#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include "server/calls/gate.h"
#include "server/calls/reactors.h"
#include "tests/server/calls/called_stream.h"
#include "tests/server/run/direct_coordinator.h"

namespace causeway::server {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

using ControlStream = CalledStream<v1::SiteMessage, v1::CoordinatorMessage>;

v1::SiteMessage Joining(const std::string& site) {
  v1::SiteMessage message;
  *message.mutable_join() = JoinOf(site);
  return message;
}

v1::SiteMessage PingAt(uint64_t sent_us) {
  v1::SiteMessage message;
  message.mutable_ping()->set_sent_us(sent_us);
  return message;
}

class ControlTest : public testing::Test {
 protected:
  void Open(ControlStream& stream) { stream.Bind(NewControlReactor(run_.coordinator.get(), gate_.get(), {})); }
  void Join(ControlStream& stream, const std::string& site) {
    Open(stream);
    stream.Deliver(Joining(site));
    run_.Settle();
  }

  // Lets any number of messages through.
  const std::unique_ptr<Gate> gate_ = *Gate::Create({.limits = {.control_messages_burst = 1e6}, .clock = &run_.clock});
  DirectCoordinator run_;
};

TEST_F(ControlTest, MessagesLeaveOneAtATimeInTheirOrder) {
  ControlStream stream;
  Join(stream, "a");
  ASSERT_EQ(stream.written().size(), 1u);
  EXPECT_TRUE(stream.written()[0].has_welcome());
  stream.CompleteWrite();
  ASSERT_EQ(stream.written().size(), 2u);
  EXPECT_TRUE(stream.written()[1].has_seed_request());
  stream.CompleteWrites();
  EXPECT_EQ(stream.written().back().notice().reason(), "0 of 2 sites are ready (min_sites)");
  EXPECT_TRUE(stream.reading());
}

TEST_F(ControlTest, PingIsAnsweredAtOnceAlsoWhileTheJournalWrites) {
  ControlStream stream;
  const HeldJournal held(*run_.journal);
  Open(stream);
  stream.Deliver(Joining("a"));
  stream.Deliver(PingAt(77));
  ASSERT_EQ(stream.written().size(), 1u);
  EXPECT_EQ(stream.written()[0].pong().sent_us(), 77u);
}

TEST_F(ControlTest, MessageOfAKindFromANewerSiteIsPassedOver) {
  ControlStream stream;
  Join(stream, "a");
  stream.CompleteWrites();
  const size_t before = stream.written().size();
  stream.Deliver({});
  EXPECT_EQ(stream.written().size(), before);
  stream.Deliver(PingAt(1));
  EXPECT_EQ(stream.written().size(), before + 1);
  EXPECT_FALSE(stream.finished());
}

TEST_F(ControlTest, ProgressThatIsTooLongEndsItsStreamBeforeTheCoordinatorHearsOfIt) {
  ControlStream stream;
  Join(stream, "a");
  v1::SiteMessage message;
  message.mutable_progress()->set_step(7);
  for (int i = 0; i < 600; ++i) message.mutable_progress()->add_in_flight(std::string(500, 'x'));
  stream.Deliver(message);
  ASSERT_TRUE(stream.finished());
  EXPECT_EQ(stream.finished()->error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(stream.finished()->error_message(), HasSubstr("expected at most 262144"));
  EXPECT_EQ(run_.StatusOf("a").progress->step, 0);
  run_.Settle();
  EXPECT_THAT(run_.StatusOf("a").noisy, HasSubstr("expected at most 262144"));
  EXPECT_EQ(run_.History("noisy").size(), 1u);
}

TEST_F(ControlTest, FieldBeyondItsLimitEndsItsStreamAndOfAJoinItIsTheLastWord) {
  ControlStream stream;
  Join(stream, "a");
  v1::SiteMessage message;
  for (int i = 0; i < 1'500'000; ++i) message.mutable_progress()->add_eval_versions(i);
  stream.Deliver(message);
  ASSERT_TRUE(stream.finished());
  EXPECT_EQ(stream.finished()->error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(stream.finished()->error_message(), "progress.eval_versions[1024]: expected at most 1024, got more");
  ControlStream joining;
  Open(joining);
  v1::SiteMessage join = Joining("b");
  join.mutable_join()->mutable_manifest()->mutable_tensors(0)->set_name(std::string(4 << 20, 'x'));
  joining.Deliver(join);
  ASSERT_EQ(joining.written().size(), 1u);
  EXPECT_EQ(joining.written()[0].refused().reason(),
            "join.manifest.tensors[0].name: expected at most 512 bytes, got 4194304");
  EXPECT_EQ(joining.written()[0].refused().retry_after_ms(), 0) << "it would say the same again";
  joining.CompleteWrites();
  EXPECT_TRUE(joining.finished());
}

TEST_F(ControlTest, NothingIsReadWhileTheJournalHasMoreThanItMayHold) {
  ControlStream stream;
  Join(stream, "a");
  {
    const HeldJournal held(*run_.journal);
    run_.journal->Commit({.events = {{.kind = "long", .text = std::string(core::kMaxQueuedEventBytes, 'x')}}});
    stream.Deliver(PingAt(1));
    EXPECT_FALSE(stream.reading());
  }
  run_.Settle();
  EXPECT_TRUE(stream.reading());
}

TEST_F(ControlTest, RefusalIsSentBeforeTheStreamEnds) {
  ControlStream stream;
  Open(stream);
  v1::SiteMessage join = Joining("a");
  join.mutable_join()->mutable_context()->set_session("");
  stream.Deliver(join);
  run_.Settle();
  ASSERT_EQ(stream.written().size(), 1u);
  EXPECT_EQ(stream.written()[0].refused().reason(), "session: expected a session id, got none");
  EXPECT_FALSE(stream.finished()) << "the refusal is on its way";
  stream.CompleteWrite();
  ASSERT_TRUE(stream.finished());
  EXPECT_TRUE(stream.finished()->ok());
}

TEST_F(ControlTest, SiteThatDoesNotReadIsCutOffAndItsNameIsKept) {
  ControlStream stream;
  Join(stream, "a");
  const size_t queued = 3;  // what follows from the join: Welcome, SeedRequest, Notice
  for (size_t i = queued; i < core::kMaxQueuedControlMessages; ++i) stream.Deliver(PingAt(i));
  EXPECT_FALSE(stream.finished());
  stream.Deliver(PingAt(1));
  ASSERT_TRUE(stream.finished());
  EXPECT_EQ(stream.finished()->error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(stream.finished()->error_message(), "the site does not read its control stream");
  stream.Break();
  EXPECT_TRUE(run_.StatusOf("a").lease_s_left.has_value());
  ControlStream next;
  Join(next, "a");
  EXPECT_TRUE(next.written()[0].has_welcome());
}

TEST_F(ControlTest, SiteThatJoinsAgainEndsItsOlderStreamAndGoesOnWithTheNewOne) {
  ControlStream older, newer;
  Join(older, "a");
  older.CompleteWrites();
  Join(newer, "a");
  ASSERT_TRUE(older.finished());
  EXPECT_TRUE(older.finished()->ok());
  older.Break();
  EXPECT_FALSE(run_.StatusOf("a").lease_s_left) << "the end of the older stream is no news of the site";
  newer.CompleteWrites();
  EXPECT_TRUE(newer.written()[0].has_welcome());
  run_.Seed("a");
  EXPECT_TRUE(run_.coordinator->Ask(input::ChangeRun{v1::ChangeRunRequest::PAUSE}).ok());
  EXPECT_TRUE(newer.writing());
  EXPECT_FALSE(newer.finished());
}

TEST_F(ControlTest, StreamThatEndsWithoutLeaveIsBrokenAndTheSiteIsExpectedBack) {
  ControlStream stream;
  Join(stream, "a");
  stream.CompleteWrites();
  stream.HalfClose();
  ASSERT_TRUE(stream.finished());
  EXPECT_TRUE(stream.finished()->ok());
  stream.Break();
  run_.clock.Advance(3'000);
  const SiteStatus status = run_.StatusOf("a");
  EXPECT_EQ(status.state, core::SiteState::kJoining);
  EXPECT_EQ(status.reason, "its control stream broke; expected back within the lease");
  EXPECT_EQ(status.lease_s_left, 7.0);
}

TEST_F(ControlTest, StreamThatIsCancelledWhileAMessageIsOnItsWayEndsOnce) {
  ControlStream stream;
  Join(stream, "a");
  ASSERT_TRUE(stream.writing());
  stream.Break();
  EXPECT_TRUE(run_.StatusOf("a").lease_s_left.has_value());
}

TEST_F(ControlTest, LeaveEndsTheStreamAfterWhatWasSaidBefore) {
  ControlStream stream;
  Join(stream, "a");
  v1::SiteMessage leave;
  leave.mutable_leave()->set_reason("shut down");
  stream.Deliver(leave);
  run_.Settle();
  EXPECT_FALSE(stream.finished());
  stream.CompleteWrites();
  ASSERT_TRUE(stream.finished());
  EXPECT_TRUE(stream.finished()->ok());
  EXPECT_EQ(run_.StatusOf("a").state, core::SiteState::kGone);
  EXPECT_EQ(run_.StatusOf("a").reason, "shut down");
  stream.Break();
  EXPECT_EQ(run_.StatusOf("a").reason, "shut down") << "the end of its stream is no news of the site";
}

TEST_F(ControlTest, FirstMessageThatIsNoJoinEndsTheStreamAndTheCoordinatorHearsNothing) {
  ControlStream stream;
  Open(stream);
  v1::SiteMessage ready;
  ready.mutable_ready();
  stream.Deliver(ready);
  ASSERT_TRUE(stream.finished());
  EXPECT_EQ(stream.finished()->error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(stream.finished()->error_message(), HasSubstr("expected Join as the first message"));
  EXPECT_FALSE(stream.reading());
  EXPECT_THAT(run_.coordinator->Status().sites, IsEmpty());
}

}  // namespace
}  // namespace causeway::server
