// Every call in every role over real connections, with tokens and with certificates, against CallTable.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "server/calls/authorizer.h"
#include "server/calls/grpc_service.h"
#include "tests/folders.h"
#include "tests/server/calls/coordinator_for_test.h"
#include "transport/channel.h"

namespace causeway::server {
namespace {

using ::testing::HasSubstr;

constexpr auto kAnswered = std::chrono::milliseconds(300);  // a stream that is open for longer was let in

const std::map<Role, std::string> kNames = {
    {Role::kSite, "a"},           {Role::kShard, "shard:1"},      {Role::kStandby, "standby:1"},
    {Role::kWatch, "operator:w"}, {Role::kOperate, "operator:o"}, {Role::kAdmin, "operator:d"}};

// The files that deploy/certs makes for one name of each role.
class Identities {
 public:
  Identities() {
    const std::string command = absl::StrCat(
        InSource("deploy/certs"), " --out ", folder_.path(),
        " --coordinator 127.0.0.1 --site a --shard 1 --standby 1 --operator w:watch --operator o:operate --operator "
        "d:admin --token a "
        "--token shard:1 --token standby:1 --token operator:w --token operator:o --token operator:d > /dev/null");
    EXPECT_EQ(std::system(command.c_str()), 0);
  }
  std::string Path(const std::string& file) const { return absl::StrCat(folder_.path(), "/", file); }
  transport::TlsFiles Tls(const std::string& stem) const {
    return *transport::ReadTlsFlags(Path("ca.pem"), Path(stem + ".pem"), Path(stem + ".key"));
  }
  static std::string Stem(Role role) {
    std::string name = kNames.at(role);
    std::ranges::replace(name, ':', '-');
    return name;
  }

 private:
  TemporaryFolder folder_;
};

class RolesTest : public testing::TestWithParam<bool> {
 protected:
  RolesTest() {
    run_.Start();
    const bool tls = GetParam();
    gate_ = *Gate::Create({.authorizer = {.mutual_tls = tls,
                                          .site_tokens = tls ? "" : identities_.Path("site_tokens"),
                                          .tls_revoked = ""},
                           .clock = &clock_});
    service_ = NewGrpcService(
        run_.coordinator.get(), [] { return "{}"; }, gate_.get(), &files_);
    grpc::ServerBuilder builder;
    builder.AddListeningPort(
        "127.0.0.1:0",
        tls ? transport::TlsServerCredentials(identities_.Tls("coordinator")) : grpc::InsecureServerCredentials(),
        &port_);
    service_->Register(builder);
    server_ = builder.BuildAndStart();
  }
  ~RolesTest() override {
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
  }

  std::unique_ptr<v1::Coordinator::Stub> StubOf(Role role) {
    const std::string stem = Identities::Stem(role);
    transport::ClientFlags flags;
    if (GetParam()) {
      flags.tls_ca = identities_.Path("ca.pem");
      flags.tls_cert = identities_.Path(stem + ".pem");
      flags.tls_key = identities_.Path(stem + ".key");
    } else {
      flags.token_file = identities_.Path(stem + ".token");
    }
    const transport::Address address{"127.0.0.1", port_};
    return v1::Coordinator::NewStub(
        transport::MakeChannel(address, *transport::ReadClientFlags(flags, address), transport::Traffic::kControl));
  }

  template <typename Request, typename Response>
  static grpc::Status Ask(v1::Coordinator::Stub& stub,
                          grpc::Status (v1::Coordinator::Stub::*method)(grpc::ClientContext*, const Request&,
                                                                        Response*),
                          Request request = {}) {
    grpc::ClientContext context;
    Response response;
    *request.mutable_context() = ContextForTest("");
    return (stub.*method)(&context, request, &response);
  }
  template <typename Out, typename In>
  static grpc::Status Stream(std::unique_ptr<grpc::ClientReaderWriter<Out, In>> stream, const Out& first) {
    stream->Write(first);
    stream->WritesDone();
    for (In in; stream->Read(&in);) continue;
    return stream->Finish();
  }
  static grpc::Status Change(v1::Coordinator::Stub& stub, v1::ChangeRunRequest::Change change) {
    v1::ChangeRunRequest request;
    request.set_change(change);
    return Ask(stub, &v1::Coordinator::Stub::ChangeRun, request);
  }

  // How the call of that row ends; a row that is not here fails the test.
  grpc::Status Call(v1::Coordinator::Stub& stub, std::string_view row) {
    using S = v1::Coordinator::Stub;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kAnswered);
    if (row == "Describe") return Ask(stub, &S::Describe);
    if (row == "GetStatus") return Ask(stub, &S::GetStatus);
    if (row == "GetHistory") return Ask(stub, &S::GetHistory);
    if (row == "KeepFile") return Ask(stub, &S::KeepFile);
    if (row == "GetFile") return Ask(stub, &S::GetFile);
    if (row == "ChangeRun PAUSE") return Change(stub, v1::ChangeRunRequest::PAUSE);
    if (row == "ChangeRun RESUME") return Change(stub, v1::ChangeRunRequest::RESUME);
    if (row == "ChangeRun STOP") return Change(stub, v1::ChangeRunRequest::STOP);
    if (row == "DrainSite") {
      v1::DrainRequest request;
      request.set_site("elsewhere");
      return Ask(stub, &S::DrainSite, request);
    }
    if (row == "ChangeSettings") return Ask(stub, &S::ChangeSettings);
    if (row == "ReleaseSite") {
      v1::ReleaseRequest request;
      request.set_site("elsewhere");
      return Ask(stub, &S::ReleaseSite, request);
    }
    if (row == "Rollback") return Ask(stub, &S::Rollback);
    if (row == "Download") {
      v1::DownloadRequest request;
      *request.mutable_context() = ContextForTest("");
      const auto stream = stub.Download(&context, request);
      for (v1::DownloadMessage message; stream->Read(&message);) continue;
      return stream->Finish();
    }
    if (row == "Control") {
      v1::SiteMessage join;
      *join.mutable_join() = JoinOf("a");
      return Stream(stub.Control(&context), join);
    }
    if (row == "Upload") {
      v1::UploadMessage header;
      *header.mutable_header() = HeaderOf("a", 0);
      return Stream(stub.Upload(&context), header);
    }
    if (row == "Follow") {
      v1::FollowMessage follow;
      *follow.mutable_context() = ContextForTest("");
      return Stream(stub.Follow(&context), follow);
    }
    if (row == "Replicate") {
      v1::ReplicateMessage message;
      *message.mutable_context() = ContextForTest("");
      return Stream(stub.Replicate(&context), message);
    }
    if (row == "Promote") return Ask(stub, &S::Promote);
    if (row == "ForgetStandby") return Ask(stub, &S::ForgetStandby);
    ADD_FAILURE() << "no call for the row " << row;
    return grpc::Status::OK;
  }

  const Identities identities_;
  CoordinatorForTest run_;
  core::FakeClock clock_;
  std::unique_ptr<Gate> gate_;
  TemporaryFolder folder_;
  ModelFiles files_{folder_.path()};
  std::unique_ptr<CallService> service_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
};

TEST_P(RolesTest, EachCallIsAllowedOrRefusedInEachRoleAsTheTableSays) {
  for (const Role role : kRoles) {
    const auto stub = StubOf(role);
    for (const CallRow& row : CallTable()) {
      if (row.call == "Show") continue;  // of a coordinator that rebuilds its state
      const grpc::Status status = Call(*stub, row.call);
      const bool refused = status.error_code() == grpc::StatusCode::PERMISSION_DENIED;
      EXPECT_NE(status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << status.error_message();
      EXPECT_EQ(refused, !row.Allows(role))
          << RoleName(role) << ", " << row.call << ": " << status.error_code() << " " << status.error_message();
      if (refused) {
        EXPECT_THAT(status.error_message(), HasSubstr(absl::StrCat("has role ", std::string(RoleName(role)))));
      }
    }
  }
}

TEST_P(RolesTest, ShowIsForSites) {
  for (const Role role : kRoles) {
    std::string token;
    std::ifstream(identities_.Path(Identities::Stem(role) + ".token")) >> token;
    const CertificateFacts facts = [&] {
      std::ifstream file(identities_.Path(Identities::Stem(role) + ".pem"));
      return FactsOf({std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()});
    }();
    const Peer peer{.names = {kNames.at(role)}, .token = token, .address = "", .call = "Show", .unit = facts.unit};
    EXPECT_EQ(gate_->Arrive(peer, {}).ok(), role == Role::kSite) << RoleName(role);
  }
}

TEST_P(RolesTest, CommandsAreRecordedWithNameAddressArgumentsAndResult) {
  const auto oncall = StubOf(Role::kOperate), site = StubOf(Role::kSite);
  EXPECT_TRUE(Change(*oncall, v1::ChangeRunRequest::PAUSE).ok());
  EXPECT_FALSE(Change(*oncall, v1::ChangeRunRequest::STOP).ok());
  EXPECT_FALSE(Call(*oncall, "DrainSite").ok());
  EXPECT_FALSE(Call(*site, "DrainSite").ok());
  v1::HistoryRequest request;
  request.set_kind("command");
  *request.mutable_context() = ContextForTest("");
  grpc::ClientContext context;
  v1::HistoryResponse history;
  ASSERT_TRUE(oncall->GetHistory(&context, request, &history).ok());
  ASSERT_EQ(history.events_size(), 4);
  const auto& pause = history.events(0).command();
  EXPECT_EQ(history.events(0).kind(), "command");
  EXPECT_EQ(pause.name(), "operator:o");
  EXPECT_EQ(pause.role(), "operate");
  EXPECT_THAT(pause.address(), testing::StartsWith("127.0.0.1:"));
  EXPECT_EQ(pause.command(), "pause");
  EXPECT_EQ(pause.result(), "done");
  EXPECT_EQ(history.events(0).text(), absl::StrCat("operator:o (operate) from ", pause.address(), ": pause: done"));
  EXPECT_EQ(history.events(1).command().result(), "refused: stop takes role admin, and operator:o has role operate");
  EXPECT_EQ(history.events(2).command().arguments(), "site=elsewhere");
  EXPECT_THAT(history.events(2).command().result(), HasSubstr("refused: site elsewhere is not training"));
  EXPECT_EQ(history.events(3).command().name(), "a");
  EXPECT_EQ(history.events(3).command().role(), "site");
}

TEST_P(RolesTest, NameThatIsRefusedOnAndOnDoesNotFillTheRecord) {
  const auto site = StubOf(Role::kSite);
  for (int i = 0; i < 2 * kRecordedRefusalsBurst; ++i) EXPECT_FALSE(Call(*site, "DrainSite").ok());
  EXPECT_EQ(run_.coordinator->journal().History(0, 1'000, "command")->size(),
            static_cast<size_t>(kRecordedRefusalsBurst));
}

INSTANTIATE_TEST_SUITE_P(Tokens, RolesTest, testing::Values(false));
INSTANTIATE_TEST_SUITE_P(Certificates, RolesTest, testing::Values(true));

TEST(CallTableTest, HasARowForEachCallAndEachChangeOfTheRun) {
  const auto* service = v1::SiteMessage::descriptor()->file()->FindServiceByName("Coordinator");
  for (int i = 0; i < service->method_count(); ++i) {
    EXPECT_TRUE(HasRow(service->method(i)->name())) << service->method(i)->name() << ": add a row to roles.cc";
  }
  const auto* change = v1::ChangeRunRequest::Change_descriptor();
  for (int i = 1; i < change->value_count(); ++i) {
    EXPECT_NE(RowOf(absl::StrCat("ChangeRun ", change->value(i)->name())), nullptr) << change->value(i)->name();
  }
  EXPECT_FALSE(HasRow("Nothing"));
  EXPECT_FALSE(HasRow(""));
}

TEST(CallTableTest, IsTheOneInTheDocs) {
  std::ifstream file(InSource("docs/security.md"));
  const std::string docs{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  EXPECT_THAT(docs, HasSubstr(CallTableText()));
}

TEST(CommandRecordTest, OfNobodySaysSoAndTextThatIsNoRecordIsNone) {
  const CommandRecord record{
      .name = "", .role = "", .address = "127.0.0.1:5", .command = "drain", .arguments = "site=a", .result = "done"};
  EXPECT_EQ(record.Text(), "from 127.0.0.1:5, not identified: drain site=a: done");
  EXPECT_EQ(CommandRecord::FromEventText(record.EventText())->Text(), record.Text());
  for (const char* text : {"", "by an operator", "[]", "{\"name\": 1}", "{}"}) {
    EXPECT_FALSE(CommandRecord::FromEventText(text)) << text;
  }
}

}  // namespace
}  // namespace causeway::server
