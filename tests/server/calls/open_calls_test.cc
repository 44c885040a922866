// How each kind of stream begins: by its headers, then with a first message in time; and what ends it from outside.
#include "server/calls/open_calls.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "core/limits.h"
#include "server/calls/gate.h"
#include "server/calls/reactors.h"
#include "tests/server/calls/called_stream.h"
#include "tests/server/run/direct_coordinator.h"

namespace causeway::server {
namespace {

using ::testing::HasSubstr;
using BulkStream = CalledStream<grpc::ByteBuffer, grpc::ByteBuffer>;

// SHA-256 of "alpha" and "beta".
constexpr char kTokenOfA[] = "a 8ed3f6ad685b959ead7022518e1af76cd816f8e8ec7ccdda1ed4018e8f2223f8\n";
constexpr char kTokenOfB[] = "b f44e64e75f3948e9f73f8dfa94721c4ce8cbb4f265c4790c702b2d41cfbf2753\n";

Peer Calling(Peer peer, const std::string& call) {
  peer.call = call;
  return peer;
}

// One of each kind.
struct Calls {
  Calls(RunExchange* coordinator, Gate* gate, const Peer& peer) {
    control.Bind(NewControlReactor(coordinator, gate, Calling(peer, "Control")));
    follow.Bind(NewFollowReactor(coordinator, gate, Calling(peer, "Follow")));
    upload.Bind(NewUploadReactor(coordinator, gate, Calling(peer, "Upload")));
    download.Bind(NewDownloadReactor(coordinator, gate, Calling(peer, "Download")));
  }

  template <typename Function>
  void ForEach(Function function) const {
    function("control", control);
    function("follow", follow);
    function("upload", upload);
    function("download", download);
  }

  CalledStream<v1::SiteMessage, v1::CoordinatorMessage> control;
  CalledStream<v1::FollowMessage, v1::MembershipUpdate> follow;
  BulkStream upload, download;
};

class OpenCallsTest : public testing::Test {
 protected:
  std::unique_ptr<Gate> MakeGate(const std::string& tokens = "") {
    auto gate = Gate::Create({.authorizer = {.site_tokens = tokens}, .clock = &run_.clock});
    EXPECT_TRUE(gate.ok()) << gate.status();
    return *std::move(gate);
  }
  // A download that waits for a round's update.
  void Wait(BulkStream& stream, Gate* gate, const std::string& site, const Peer& peer) {
    stream.Bind(NewDownloadReactor(run_.coordinator.get(), gate, Calling(peer, "Download")));
    v1::DownloadRequest request = DirectCoordinator::RequestOf(site, 0);
    request.set_update_base(0);
    stream.Deliver(transport::ToBytes(request));
    EXPECT_FALSE(stream.finished());
  }

  DirectCoordinator run_;
  TemporaryFolder folder_;
};

TEST_F(OpenCallsTest, StrangersCallEndsUnread) {
  const auto gate = MakeGate(folder_.Write("tokens", kTokenOfA));
  for (const char* token : {"", "delta"}) {
    const Calls calls(run_.coordinator.get(), gate.get(), {.token = token});
    calls.ForEach([](const char* kind, const auto& stream) {
      ASSERT_TRUE(stream.finished()) << kind;
      EXPECT_EQ(stream.finished()->error_code(), grpc::StatusCode::UNAUTHENTICATED) << kind;
      EXPECT_FALSE(stream.reading()) << kind;
    });
  }
}

TEST_F(OpenCallsTest, CallWithoutAFirstMessageEndsWhenItsTimeIsOver) {
  const auto gate = MakeGate();
  const Calls calls(run_.coordinator.get(), gate.get(), {});
  run_.clock.Advance(core::kFirstMessageMs - 1);
  gate->Tick();
  calls.ForEach([](const char* kind, const auto& stream) { EXPECT_FALSE(stream.finished()) << kind; });
  run_.clock.Advance(1);
  gate->Tick();
  calls.ForEach([](const char* kind, const auto& stream) {
    ASSERT_TRUE(stream.finished()) << kind;
    EXPECT_EQ(stream.finished()->error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << kind;
    EXPECT_EQ(stream.finished()->error_message(), "expected the call's first message within 10000 ms, got none");
  });
  gate->Tick();
}

TEST_F(OpenCallsTest, CallThatHasSpokenMayBeSilent) {
  run_.Start();
  const auto gate = MakeGate();
  BulkStream waits;
  Wait(waits, gate.get(), "a", {});
  CalledStream<v1::SiteMessage, v1::CoordinatorMessage> control;
  control.Bind(NewControlReactor(run_.coordinator.get(), gate.get(), Calling({}, "Control")));
  v1::SiteMessage join;
  *join.mutable_join() = JoinOf("c");
  control.Deliver(join);
  run_.Settle();
  run_.clock.Advance(10 * core::kFirstMessageMs);
  gate->Tick();
  EXPECT_FALSE(waits.finished());
  EXPECT_FALSE(control.finished());
}

TEST_F(OpenCallsTest, WithdrawnTokenEndsWhatIsOpenAndNothingElse) {
  run_.Start();
  folder_.Write("tokens", std::string(kTokenOfA) + kTokenOfB);
  const auto gate = MakeGate(folder_.path() + "/tokens");
  BulkStream of_a, of_b;
  Wait(of_a, gate.get(), "a", {.token = "alpha"});
  Wait(of_b, gate.get(), "b", {.token = "beta"});
  gate->Tick();
  EXPECT_FALSE(of_a.finished());
  std::filesystem::rename(folder_.Write("new", kTokenOfB), folder_.path() + "/tokens");
  gate->Tick();
  ASSERT_TRUE(of_a.finished());
  EXPECT_EQ(of_a.finished()->error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_THAT(of_a.finished()->error_message(), HasSubstr("no name has this token"));
  EXPECT_FALSE(of_b.finished());
}

TEST_F(OpenCallsTest, RevokedCertificateEndsItsControlAndItsBulkStreamsAndNothingElse) {
  run_.Start();
  const std::string path = folder_.Write("revoked", "");
  const auto gate =
      *Gate::Create({.authorizer = {.mutual_tls = true, .site_tokens = "", .tls_revoked = path}, .clock = &run_.clock});
  const Peer a{.names = {"a"}, .token = "", .address = "", .call = "", .unit = "", .serial = "ab"};
  const Peer b{.names = {"b"}, .token = "", .address = "", .call = "", .unit = "", .serial = "cd"};
  BulkStream of_a, of_b;
  Wait(of_a, gate.get(), "a", a);
  Wait(of_b, gate.get(), "b", b);
  CalledStream<v1::SiteMessage, v1::CoordinatorMessage> control;
  control.Bind(NewControlReactor(run_.coordinator.get(), gate.get(), Calling(a, "Control")));
  v1::SiteMessage join;
  *join.mutable_join() = JoinOf("a");
  control.Deliver(join);
  run_.Settle();
  gate->Tick();
  EXPECT_FALSE(of_a.finished());
  EXPECT_FALSE(control.finished());
  folder_.Write("revoked", "AB\n");
  gate->Tick();
  ASSERT_TRUE(of_a.finished());
  EXPECT_EQ(of_a.finished()->error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_THAT(of_a.finished()->error_message(), HasSubstr("serial ab is revoked"));
  ASSERT_TRUE(control.finished());
  EXPECT_EQ(control.finished()->error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_FALSE(of_b.finished());
}

}  // namespace
}  // namespace causeway::server
