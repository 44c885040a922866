// Calls meet this before the coordinator hears of them: raw clients that say whatever they like.
#include "server/calls/gate.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "core/limits.h"
#include "server/calls/reactors.h"
#include "tests/core/fake_clock.h"
#include "tests/server/calls/called_stream.h"
#include "tests/server/calls/coordinator_for_test.h"
#include "tests/server/run/direct_coordinator.h"

namespace causeway::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using BulkStream = CalledStream<grpc::ByteBuffer, grpc::ByteBuffer>;

// SHA-256 of "alpha", "beta" and "gamma".
constexpr char kTokens[] =
    "a 8ed3f6ad685b959ead7022518e1af76cd816f8e8ec7ccdda1ed4018e8f2223f8\n"
    "b f44e64e75f3948e9f73f8dfa94721c4ce8cbb4f265c4790c702b2d41cfbf2753\n"
    "operator be9d587defa1f0c09ef49eb17e206983a5f8f8289e4281860bd0ee5a19592c67\n";

class Gates : public testing::Test {
 protected:
  static std::unique_ptr<Gate> Make(const std::string& tokens, SiteLimitOptions limits = {}) {
    static const core::FakeClock clock;
    auto gate = Gate::Create({.authorizer = {.site_tokens = tokens}, .limits = limits, .clock = &clock});
    EXPECT_TRUE(gate.ok()) << gate.status();
    return *std::move(gate);
  }

  // A call's context with a token.
  static std::unique_ptr<grpc::ClientContext> With(const std::string& token) {
    auto context = std::make_unique<grpc::ClientContext>();
    if (!token.empty()) context->AddMetadata("authorization", "Bearer " + token);
    return context;
  }

  // Sends the messages, one after the other, and reads until the coordinator ends the stream.
  static grpc::Status Control(CoordinatorForTest& run, const std::string& token,
                              const std::vector<v1::SiteMessage>& messages) {
    const auto context = With(token);
    const auto stream = run.stub->Control(context.get());
    for (const v1::SiteMessage& message : messages) stream->Write(message);
    v1::CoordinatorMessage answer;
    while (stream->Read(&answer)) continue;
    return stream->Finish();
  }

  static v1::SiteMessage Joining(const std::string& site) {
    v1::SiteMessage message;
    *message.mutable_join() = JoinOf(site);
    return message;
  }

  const TemporaryFolder folder_;
};

TEST_F(Gates, ControlStreamBeginsWithJoin) {
  CoordinatorForTest run;
  v1::SiteMessage progress;
  progress.mutable_progress();
  const grpc::Status status = Control(run, "", {progress});
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("expected Join as the first message"));
}

TEST_F(Gates, StreamOfOneSiteNamesNoOther) {
  CoordinatorForTest run;
  const grpc::Status status = Control(run, "", {Joining("a"), Joining("b")});
  EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_THAT(status.error_message(), HasSubstr("this stream is of site a, and Join names b"));
}

TEST_F(Gates, EveryKindOfCallAsksForTheTokenOfItsSite) {
  const auto gate = Make(folder_.Write("tokens", kTokens));
  CoordinatorForTest run(gate.get());
  for (const auto& [token, code] : {std::pair("", grpc::StatusCode::UNAUTHENTICATED),
                                    {"delta", grpc::StatusCode::UNAUTHENTICATED},
                                    {"beta", grpc::StatusCode::PERMISSION_DENIED}}) {
    EXPECT_EQ(Control(run, token, {Joining("a")}).error_code(), code) << token;

    auto context = With(token);
    v1::DescribeRequest describe;
    *describe.mutable_context() = ContextForTest("a");
    v1::RunDescription description;
    EXPECT_EQ(run.stub->Describe(context.get(), describe, &description).error_code(), code) << token;
    EXPECT_EQ(description.run_id(), "");

    context = With(token);
    const auto upload = run.stub->Upload(context.get());
    v1::UploadMessage header;
    *header.mutable_header() = HeaderOf("a", 0);
    upload->Write(header);
    v1::UploadReply reply;
    EXPECT_FALSE(upload->Read(&reply)) << token;
    EXPECT_EQ(upload->Finish().error_code(), code) << token;

    context = With(token);
    v1::DownloadRequest request;
    *request.mutable_context() = ContextForTest("a");
    const auto download = run.stub->Download(context.get(), request);
    v1::DownloadMessage message;
    EXPECT_FALSE(download->Read(&message)) << token;
    EXPECT_EQ(download->Finish().error_code(), code) << token;

    context = With(token);
    v1::DrainRequest drain;
    v1::DrainResponse drained;
    EXPECT_EQ(run.stub->DrainSite(context.get(), drain, &drained).error_code(), code) << token;
  }
  // Any identity may look.
  v1::StatusResponse status;
  EXPECT_EQ(run.stub->GetStatus(With("").get(), {}, &status).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(status.json(), "");
  EXPECT_TRUE(run.stub->GetStatus(With("beta").get(), {}, &status).ok());
}

TEST_F(Gates, TokenThatIsTakenBackEndsTheStreamAtItsNextMessage) {
  const std::string path = folder_.Write("tokens", kTokens);
  const auto gate = Make(path);
  CoordinatorForTest run(gate.get());
  const auto context = With("alpha");
  const auto stream = run.stub->Control(context.get());
  stream->Write(Joining("a"));
  v1::CoordinatorMessage answer;
  ASSERT_TRUE(stream->Read(&answer));
  EXPECT_TRUE(answer.has_welcome()) << answer.ShortDebugString();
  const std::string tokens = kTokens;
  std::filesystem::rename(folder_.Write("new", "# a has left\n" + tokens.substr(tokens.find("\nb ") + 1)), path);
  v1::SiteMessage progress;
  progress.mutable_progress();
  stream->Write(progress);
  while (stream->Read(&answer)) continue;
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAUTHENTICATED);
}

TEST_F(Gates, SiteThatOwesBytesOfManifestsIsRefusedUnreadAndTheOthersAreNot) {
  const auto gate = Make(folder_.Write("tokens", kTokens));
  CoordinatorForTest run(gate.get());
  Peer peer;
  peer.token = "alpha";
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(gate->ControlBytes(peer, core::kMaxControlMessageBytes).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(gate->ControlBytes(peer, core::kMaxControlMessageBytes)));
  EXPECT_TRUE(gate->ControlBytes(peer, 1'000).ok()) << "small ones are counted once their site is known";
  const grpc::Status status = Control(run, "alpha", {});
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("site a sends more than 8388608 bytes of manifests a second"));
  const auto context = With("beta");
  const auto stream = run.stub->Control(context.get());
  stream->Write(Joining("b"));
  v1::CoordinatorMessage answer;
  ASSERT_TRUE(stream->Read(&answer));
  EXPECT_TRUE(answer.has_welcome()) << answer.ShortDebugString();
  context->TryCancel();
  while (stream->Read(&answer)) continue;
  stream->Finish();
}

TEST_F(Gates, SiteThatFloodsItsControlStreamIsStoppedAndTheOthersGoOn) {
  const auto gate = Make("", {.control_messages_per_second = 1, .control_messages_burst = 5});
  CoordinatorForTest run(gate.get());
  run.Start();
  v1::SiteMessage progress;
  progress.mutable_progress();
  std::vector<v1::SiteMessage> flood(20, progress);
  flood.insert(flood.begin(), Joining("c"));
  const grpc::Status status = Control(run, "", flood);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("site c sends more than 1 control messages a second"));
  EXPECT_TRUE(run.Contribute("a", 0).admitted());
  EXPECT_TRUE(run.Contribute("b", 0).admitted());
}

TEST_F(Gates, BulkStreamsOfOneSiteAreCountedAndThoseOfOthersAreNot) {
  const auto gate = Make("", {.bulk_streams_at_once = 2});
  CoordinatorForTest run(gate.get());
  run.Start();
  v1::DownloadRequest waits;  // for an update that never comes
  *waits.mutable_context() = ContextForTest("a");
  waits.set_update_base(0);
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::DownloadMessage>>> streams;
  for (int i = 0; i < 4; ++i) {
    contexts.push_back(With(""));
    streams.push_back(run.stub->Download(contexts.back().get(), waits));
  }
  // They arrive when they arrive; from then on an upload is one too many.
  UploadOutcome upload = run.Contribute("a", 0);
  while (upload.status.ok()) upload = run.Contribute("a", 0);
  EXPECT_EQ(upload.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(upload.status.error_message(), HasSubstr("site a has 2 bulk streams open"));
  EXPECT_TRUE(run.Contribute("b", 0).admitted());
  for (const auto& context : contexts) context->TryCancel();
  for (const auto& stream : streams) EXPECT_FALSE(stream->Finish().ok());
}

TEST_F(Gates, MessageBeyondTheLimitEndsItsCallAlone) {
  CoordinatorForTest run;
  grpc::ChannelArguments arguments;
  arguments.SetMaxSendMessageSize(-1);
  const auto stub = v1::Coordinator::NewStub(grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(run.port),
                                                                       grpc::InsecureChannelCredentials(), arguments));
  v1::SiteMessage join = Joining("a");
  join.mutable_join()->set_software_version(std::string(core::kMaxControlMessageBytes, 'x'));
  grpc::ClientContext context;
  const auto stream = stub->Control(&context);
  stream->Write(join);
  v1::CoordinatorMessage answer;
  EXPECT_FALSE(stream->Read(&answer));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  run.Start();
}

TEST_F(Gates, CallOfAnotherProtocolIsRefusedWithBothNumbersAndTheVersionToUse) {
  CoordinatorForTest run;
  v1::DescribeRequest request;
  *request.mutable_context() = ContextForTest("a");
  request.mutable_context()->set_protocol(9);
  grpc::ClientContext context;
  v1::RunDescription description;
  const grpc::Status status = run.stub->Describe(&context, request, &description);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), AllOf(HasSubstr("expected protocol 1, got 9"), HasSubstr(transport::kVersion)));
}

class Limits : public testing::Test {
 protected:
  absl::Status Take(const std::string& site, int64_t bytes = 20, bool has_manifest = false) {
    return limits_.TakeControlMessage(site, bytes, has_manifest);
  }

  core::FakeClock clock_{1'000'000};
  SiteLimits limits_{{.control_messages_per_second = 10,
                      .control_messages_burst = 3,
                      .control_message_bytes = 1'000,
                      .bulk_streams_per_second = 100,
                      .bulk_streams_burst = 5,
                      .bulk_streams_at_once = 2,
                      .max_sites = 2},
                     &clock_};
};

TEST_F(Limits, MessagesBeyondTheRateAreRefusedUntilTimeHasPassed) {
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Take("a").ok());
  const absl::Status refused = Take("a");
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("site a sends more than 10 control messages a second"));
  clock_.Advance(99);
  EXPECT_FALSE(Take("a").ok());
  clock_.Advance(1);
  EXPECT_TRUE(Take("a").ok());
  EXPECT_FALSE(Take("a").ok());
  clock_.Advance(3'600'000);  // an hour saves up no more than the burst
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Take("a").ok());
  EXPECT_FALSE(Take("a").ok());
}

TEST_F(Limits, SiteThatFloodsTakesNothingFromAnother) {
  for (int i = 0; i < 100; ++i) (void)Take("a");
  EXPECT_FALSE(Take("a").ok());
  EXPECT_TRUE(Take("b").ok());
}

TEST_F(Limits, MessageThatIsTooLongIsRefusedUnlessItHasAManifest) {
  EXPECT_TRUE(Take("a", 1'000).ok());
  const absl::Status refused = Take("a", 1'001);
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("of 1001 bytes: expected at most 1000"));
  EXPECT_TRUE(Take("a", core::kMaxControlMessageBytes, /*has_manifest=*/true).ok());
}

TEST_F(Limits, BytesBeyondTheRateAreRefusedUntilTimeHasPassed) {
  SiteLimits limits({.control_messages_burst = 1e6, .control_message_bytes = 1'000}, &clock_);
  for (int i = 0; i < 16; ++i) ASSERT_TRUE(limits.TakeControlMessage("a", 1'000, false).ok());
  EXPECT_THAT(std::string(limits.TakeControlMessage("a", 1'000, false).message()),
              HasSubstr("more than 4000 bytes of control messages a second"));
  EXPECT_TRUE(limits.TakeControlMessage("b", 1'000, false).ok());
  clock_.Advance(250);
  EXPECT_TRUE(limits.TakeControlMessage("a", 1'000, false).ok());
}

TEST_F(Limits, BytesOfManifestsMayBeOwedAndNoneIsTakenUntilTheyArePaid) {
  const int64_t large = core::kMaxControlMessageBytes;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(limits_.TakeLarge("a", large).ok());
  ASSERT_TRUE(limits_.TakeLarge("a", large - 1).ok());
  EXPECT_TRUE(limits_.CheckOwesNothing("a").ok());
  ASSERT_TRUE(limits_.TakeLarge("a", large).ok()) << "one byte was left";
  for (const absl::Status& refused : {limits_.TakeLarge("a", large), limits_.CheckOwesNothing("a")}) {
    EXPECT_TRUE(absl::IsResourceExhausted(refused));
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr("site a sends more than 8388608 bytes of manifests a second"));
  }
  EXPECT_TRUE(limits_.CheckOwesNothing("b").ok());
  EXPECT_TRUE(limits_.TakeLarge("b", large).ok());
  clock_.Advance(999);
  EXPECT_FALSE(limits_.TakeLarge("a", large).ok());
  clock_.Advance(2);
  EXPECT_TRUE(limits_.CheckOwesNothing("a").ok());
  EXPECT_TRUE(limits_.TakeLarge("a", large).ok());
}

TEST_F(Limits, BulkStreamsAtOnceAreCountedUntilTheyEnd) {
  auto first = limits_.OpenBulkStream("a");
  auto second = limits_.OpenBulkStream("a");
  ASSERT_TRUE(first.ok() && second.ok());
  const absl::Status third = limits_.OpenBulkStream("a").status();
  EXPECT_TRUE(absl::IsResourceExhausted(third));
  EXPECT_THAT(std::string(third.message()), HasSubstr("site a has 2 bulk streams open"));
  EXPECT_TRUE(limits_.OpenBulkStream("b").ok());
  first->reset();
  EXPECT_TRUE(limits_.OpenBulkStream("a").ok());
}

TEST_F(Limits, BulkStreamsBeyondTheRateAreRefused) {
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(limits_.OpenBulkStream("a").ok());  // and closed at once
  EXPECT_TRUE(absl::IsResourceExhausted(limits_.OpenBulkStream("a").status()));
  clock_.Advance(10);
  EXPECT_TRUE(limits_.OpenBulkStream("a").ok());
}

TEST_F(Limits, NamesAreForgottenWhenTheirBucketsAreFullAgainAndNoneIsInUse) {
  EXPECT_TRUE(Take("a").ok());
  auto stream = limits_.OpenBulkStream("b");
  EXPECT_THAT(std::string(Take("c").message()), HasSubstr("more than 2 names"));
  clock_.Advance(60'000);
  EXPECT_TRUE(Take("c").ok());
  EXPECT_FALSE(Take("d").ok()) << "b has a stream, c has just spoken";
  stream->reset();
  EXPECT_TRUE(Take("d").ok());
}

// How each kind of stream begins: by its headers, then with a first message in time; and what ends it from outside.

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
