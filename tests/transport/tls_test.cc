#include "transport/tls.h"

#include <gmock/gmock-matchers.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>

#include "causeway/v1/coordinator.grpc.pb.h"
#include "formats/named_file.h"
#include "tests/folders.h"
#include "tests/formats/temporary_folder.h"
#include "transport/channel.h"
#include "transport/tls_probe.h"

namespace causeway::transport {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr auto kDeadline = std::chrono::seconds(20);

void Execute(const std::string& command) {
  ASSERT_EQ(std::system(("(" + command + ") >/dev/null 2>&1").c_str()), 0) << command;
}

// A folder with a CA and certificates of it, as people make them.
class Certificates {
 public:
  explicit Certificates(const std::string& arguments) {
    Execute(InSource("deploy/certs") + " --out " + folder_.path() + " " + arguments);
  }
  std::string path(std::string_view name) const { return folder_ / name; }
  TlsFiles Of(const std::string& name) const { return {path("ca.pem"), path(name + ".pem"), path(name + ".key")}; }

  // Puts one in the place of NAME's certificate that was valid until yesterday.
  void Expire(const std::string& name) const {
    Execute("openssl req -new -key " + path(name + ".key") + " -subj /CN=" + name + " -out " + path("request"));
    const std::string sign = "openssl x509 -req -in " + path("request") + " -CA " + path("ca.pem") + " -CAkey " +
                             path("ca.key") + " -set_serial 7 -out " + path(name + ".pem");
    Execute(sign + " -days -1 || " + sign + " -not_before 20240101000000Z -not_after 20240102000000Z");  // OpenSSL 3.4
  }

 private:
  const TemporaryFolder folder_;
};

const Certificates& Ours() {
  static const Certificates certificates("--coordinator 127.0.0.1 --site a");
  return certificates;
}

const Certificates& Foreign() {
  static const Certificates certificates("--coordinator 127.0.0.1 --site a");
  return certificates;
}

// Answers Describe with the header that came.
class Server final : public v1::Coordinator::Service {
 public:
  explicit Server(const std::shared_ptr<grpc::ServerCredentials>& credentials, const std::string& host = "127.0.0.1")
      : address_{host, 0} {
    grpc::ServerBuilder builder;
    ConfigureServer(builder);
    builder.AddListeningPort(address_.Text(), credentials, &address_.port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~Server() override { server_->Shutdown(std::chrono::system_clock::now()); }

  const Address& address() const { return address_; }

 private:
  grpc::Status Describe(grpc::ServerContext* context, const v1::DescribeRequest*, v1::RunDescription* reply) override {
    const auto header = context->client_metadata().find("authorization");
    if (header != context->client_metadata().end()) {
      reply->set_lineage(std::string(header->second.data(), header->second.size()));
    }
    return grpc::Status::OK;
  }

  Address address_;
  std::unique_ptr<grpc::Server> server_;
};

struct Answer {
  grpc::Status status;
  std::string header;
};

Answer Call(const Address& address, const TlsFiles& files, const std::string& token = "") {
  const auto channel = MakeChannel(address, {.tls = files, .token = token}, Traffic::kControl);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kDeadline);
  v1::RunDescription reply;
  const grpc::Status status = v1::Coordinator::NewStub(channel)->Describe(&context, {}, &reply);
  return {status, reply.lineage()};
}

// The call fails, and the words say why.
void ExpectNoConnection(const Address& address, const TlsFiles& files, const std::string& why) {
  EXPECT_EQ(Call(address, files).status.error_code(), grpc::StatusCode::UNAVAILABLE) << why;
  EXPECT_THAT(WhyNoConnection(address, files), HasSubstr(why));
}

// ---- Connections ----

TEST(Tls, CertificatesOfOneCaShakeHands) {
  const Server server(TlsServerCredentials(Ours().Of("coordinator")));
  const Answer answer = Call(server.address(), Ours().Of("a"));
  EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(WhyNoConnection(server.address(), Ours().Of("a")), "");
}

TEST(Tls, TokenGoesWithEveryCallOverTlsAndPlaintext) {
  const Server tls(TlsServerCredentials(Ours().Of("coordinator")));
  EXPECT_EQ(Call(tls.address(), Ours().Of("a"), "alpha").header, "Bearer alpha");
  EXPECT_EQ(Call(tls.address(), Ours().Of("a")).header, "");
  const Server plaintext(grpc::InsecureServerCredentials());
  EXPECT_EQ(Call(plaintext.address(), {}, "alpha").header, "Bearer alpha");
}

TEST(Tls, ClientOfAnotherCaIsRefused) {
  const Server server(TlsServerCredentials(Ours().Of("coordinator")));
  TlsFiles files = Foreign().Of("a");
  files.ca = Ours().path("ca.pem");
  ExpectNoConnection(server.address(), files, "it is not of the CA in --tls_ca=" + files.ca);
}

TEST(Tls, CertificateThatIsMadeForTheCoordinatorIsNoSites) {
  const Server server(TlsServerCredentials(Ours().Of("coordinator")));
  ExpectNoConnection(server.address(), Ours().Of("coordinator"), "it is not made for sites");
}

TEST(Tls, ServerOfAnotherCaIsRefused) {
  const Server server(TlsServerCredentials(Foreign().Of("coordinator")));
  ExpectNoConnection(server.address(), Ours().Of("a"), "the coordinator's certificate is not of the CA in --tls_ca=");
}

TEST(Tls, ExpiredCertificatesAreRefusedOnBothSides) {
  const Certificates old("--coordinator 127.0.0.1 --site a");
  old.Expire("a");
  const Server server(TlsServerCredentials(old.Of("coordinator")));
  ExpectNoConnection(server.address(), old.Of("a"), "it has expired");
  const Certificates ended("--coordinator 127.0.0.1 --site a");
  ended.Expire("coordinator");
  const Server expired(TlsServerCredentials(ended.Of("coordinator")));
  ExpectNoConnection(expired.address(), ended.Of("a"), "the coordinator's certificate has expired");
}

TEST(Tls, CoordinatorMustHaveTheNameByWhichItIsCalled) {
  const Server server(TlsServerCredentials(Ours().Of("coordinator")), "127.0.0.2");
  ExpectNoConnection(server.address(), Ours().Of("a"),
                     "is for 127.0.0.1, localhost, an IPv6 address, not for 127.0.0.2");
}

TEST(Tls, PlaintextAndTlsDoNotMeetAndSaySo) {
  const Server tls(TlsServerCredentials(Ours().Of("coordinator")));
  ExpectNoConnection(tls.address(), {}, "the coordinator speaks TLS: give --tls_ca");
  const Server plaintext(grpc::InsecureServerCredentials());
  ExpectNoConnection(plaintext.address(), Ours().Of("a"), "the coordinator does not speak TLS");
}

TEST(Tls, WhereNobodyListensThereIsNothingToSayOfTls) {
  Address address;
  { address = Server(grpc::InsecureServerCredentials()).address(); }
  EXPECT_EQ(WhyNoConnection(address, Ours().Of("a")), "");
  EXPECT_EQ(WhyNoConnection(address, {}), "");
}

TEST(Tls, FilesThatAreReplacedAreUsedForNewConnections) {
  const TemporaryFolder live;
  const auto install = [&](const Certificates& certificates) {
    for (const char* name : {"ca.pem", "coordinator.key", "coordinator.pem"}) {
      std::filesystem::copy_file(certificates.path(name), live / "new");
      std::filesystem::rename(live / "new", live / name);
    }
  };
  install(Foreign());
  const Server server(
      TlsServerCredentials({live / "ca.pem", live / "coordinator.pem", live / "coordinator.key"}, /*reload_s=*/1));
  EXPECT_FALSE(Call(server.address(), Ours().Of("a")).status.ok());
  EXPECT_TRUE(Call(server.address(), Foreign().Of("a")).status.ok());
  install(Ours());
  const auto deadline = std::chrono::steady_clock::now() + kDeadline;
  bool accepted = false;
  while (!accepted && std::chrono::steady_clock::now() < deadline) {
    accepted = Call(server.address(), Ours().Of("a")).status.ok();
  }
  EXPECT_TRUE(accepted);
  EXPECT_FALSE(Call(server.address(), Foreign().Of("a")).status.ok());
}

// As where a certificate is renewed and its key comes seconds later, or a file is still being copied.
TEST(Tls, FilesThatDoNotFitAreNotUsedAndThoseOfBeforeStay) {
  const TemporaryFolder live;
  const TlsFiles files{live / "ca.pem", live / "coordinator.pem", live / "coordinator.key"};
  const auto install = [&](const Certificates& certificates, const char* name) {
    std::filesystem::copy_file(certificates.path(name), live / name, std::filesystem::copy_options::overwrite_existing);
  };
  for (const char* name : {"ca.pem", "coordinator.pem", "coordinator.key"}) install(Foreign(), name);
  const Server server(TlsServerCredentials(files, /*reload_s=*/1));
  const auto stays = [&] {  // for longer than it takes to look again
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(1'400);
    while (std::chrono::steady_clock::now() < until) {
      if (!Call(server.address(), Foreign().Of("a")).status.ok()) return false;
    }
    return true;
  };
  install(Ours(), "coordinator.pem");
  EXPECT_TRUE(stays()) << "the key of before is not that of the new certificate";
  install(Ours(), "coordinator.key");
  std::filesystem::resize_file(live / "coordinator.pem", 300);
  EXPECT_TRUE(stays()) << "half a file";
  std::filesystem::remove(live / "coordinator.pem");
  std::filesystem::create_directory(live / "coordinator.pem");
  EXPECT_TRUE(stays()) << "a folder";
  const auto noted = Contains(HasSubstr(live / "coordinator.pem: expected a regular file, got a folder"));
  EXPECT_THAT(formats::NamedFileFaults(), noted);
  std::filesystem::remove(live / "coordinator.pem");
  install(Ours(), "coordinator.pem");
  install(Ours(), "ca.pem");
  const auto deadline = std::chrono::steady_clock::now() + kDeadline;
  while (!Call(server.address(), Ours().Of("a")).status.ok()) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "they fit now";
  }
  EXPECT_THAT(formats::NamedFileFaults(), Not(noted));
}

// ---- Flags ----

std::string Refusal(const TlsFiles& files) {
  const absl::Status status = ReadTlsFlags(files.ca, files.cert, files.key).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  return std::string(status.message());
}

TEST(TlsFlags, AreGivenTogetherOrNotAtAll) {
  EXPECT_FALSE(ReadTlsFlags("", "", "")->given());
  EXPECT_TRUE(ReadTlsFlags(Ours().path("ca.pem"), Ours().path("a.pem"), Ours().path("a.key"))->given());
  EXPECT_THAT(Refusal({"ca", "", ""}), HasSubstr("missing: --tls_cert and --tls_key"));
  EXPECT_THAT(Refusal({"", "cert", "key"}), HasSubstr("missing: --tls_ca"));
}

TEST(TlsFlags, FilesThatAreWrongAreRefusedWithFlagAndPath) {
  const TemporaryFolder folder;
  const TlsFiles good = Ours().Of("a");
  const auto with = [&](std::string TlsFiles::*file, const std::string& path) {
    TlsFiles files = good;
    files.*file = path;
    return Refusal(files);
  };
  EXPECT_THAT(with(&TlsFiles::ca, "/no/such.pem"), AllOf(HasSubstr("--tls_ca=/no/such.pem: No such file")));
  EXPECT_THAT(with(&TlsFiles::cert, folder.Write("empty", "")),
              HasSubstr("/empty: expected a credential, got an empty file"));
  EXPECT_THAT(with(&TlsFiles::cert, good.key),
              AllOf(HasSubstr("--tls_cert="), HasSubstr("BEGIN CERTIFICATE"), HasSubstr("got none")));
  const std::string whole = ReadAll(good.cert);
  EXPECT_THAT(with(&TlsFiles::cert, folder.Write("cut", whole.substr(0, whole.size() / 2))),
              HasSubstr("expected certificates"));
  EXPECT_THAT(with(&TlsFiles::key, good.cert), AllOf(HasSubstr("--tls_key="), HasSubstr("private key")));
  EXPECT_THAT(with(&TlsFiles::key, Foreign().path("a.key")),
              HasSubstr("is not the key of the certificate in --tls_cert="));
  Execute("openssl ec -in " + good.key + " -aes128 -passout pass:secret -out " + folder / "encrypted");
  EXPECT_THAT(with(&TlsFiles::key, folder / "encrypted"), HasSubstr("got an encrypted one"));
}

TEST(TlsFlags, ExpiredCertificateIsRefusedBeforeAnythingStarts) {
  const Certificates old("--site a");
  old.Expire("a");
  EXPECT_THAT(Refusal(old.Of("a")),
              AllOf(HasSubstr("a.pem: the certificate has expired"), HasSubstr("it is valid from")));
}

TEST(TlsFlags, BundleOfCasMayHoldAnOldOneBesideItsSuccessor) {
  const TemporaryFolder folder;
  const Certificates old("--site a");
  old.Expire("a");
  const std::string expired = ReadAll(old.path("a.pem"));
  const std::string bundle = folder.Write("bundle", expired + ReadAll(Ours().path("ca.pem")));
  EXPECT_TRUE(ReadTlsFlags(bundle, Ours().path("a.pem"), Ours().path("a.key")).ok());
  EXPECT_THAT(Refusal({folder.Write("old", expired), Ours().path("a.pem"), Ours().path("a.key")}),
              HasSubstr("has expired"));
}

TEST(Token, IsOneWordInAFile) {
  const TemporaryFolder folder;
  EXPECT_EQ(*ReadToken(folder.Write("good", "  alpha\r\n")), "alpha");
  EXPECT_EQ(*ReadToken(folder.Write("windows",
                                    "\xEF\xBB\xBF"
                                    "alpha\r\n")),
            "alpha");
  for (const std::string text : {" \n", "two words", "al\x01pha"}) {
    const absl::Status status = ReadToken(folder.Write("bad", text)).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << text;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("--token_file="), HasSubstr("one word"))) << text;
  }
  EXPECT_THAT(std::string(ReadToken("/no/such").status().message()), HasSubstr("--token_file=/no/such: No such file"));
}

TEST(Token, ThatOthersMayReadIsTakenWithAWarning) {
  const TemporaryFolder folder;
  const std::string path = folder.Write("token", "alpha");
  const auto said = [&](mode_t mode) {
    chmod(path.c_str(), mode);
    testing::internal::CaptureStdout();
    EXPECT_EQ(*ReadToken(path), "alpha");
    return testing::internal::GetCapturedStdout();
  };
  EXPECT_THAT(said(0644), HasSubstr("every user of this machine may read it; chmod o-r"));
  EXPECT_EQ(said(0640), "") << "Kubernetes' secrets are their group's";
}

TEST(ClientFlags, WithTlsAnyAddressIsAllowed) {
  const Address far{"192.0.2.1", 7077};
  const TlsFiles files = Ours().Of("a");
  EXPECT_TRUE(absl::IsInvalidArgument(ReadClientFlags({}, far).status()));
  EXPECT_TRUE(ReadClientFlags({.insecure = true}, far).ok());
  EXPECT_TRUE(ReadClientFlags({.tls_ca = files.ca, .tls_cert = files.cert, .tls_key = files.key}, far).ok());
}

}  // namespace
}  // namespace causeway::transport
