#include "server/calls/authorizer.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/formats/temporary_folder.h"

namespace causeway::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// printf TOKEN | sha256sum
constexpr char kShaOfAlpha[] = "8ed3f6ad685b959ead7022518e1af76cd816f8e8ec7ccdda1ed4018e8f2223f8";
constexpr char kShaOfBeta[] = "f44e64e75f3948e9f73f8dfa94721c4ce8cbb4f265c4790c702b2d41cfbf2753";

std::string Message(const absl::Status& status) { return std::string(status.message()); }

// ---- The file of tokens ----

absl::StatusOr<SiteTokens> Parse(const std::string& text) { return SiteTokens::Parse(text, "tokens"); }

TEST(SiteTokens, BelongToTheSiteInTheirLine) {
  const auto tokens = Parse(std::string("# two sites\n\na ") + kShaOfAlpha + "  # until May\r\n b\t" + kShaOfBeta);
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_EQ(tokens->Owner("alpha")->name, "a");
  EXPECT_EQ(tokens->Owner("beta")->name, "b");
  for (const char* token : {"", "gamma", "alph", "alpha ", kShaOfAlpha}) EXPECT_FALSE(tokens->Owner(token)) << token;
}

TEST(SiteTokens, FileOfWindowsBeginsWithAByteOrderMark) {
  const auto tokens = Parse(std::string("\xEF\xBB\xBF"
                                        "a ") +
                            kShaOfAlpha + "\r\n");
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_EQ(tokens->Owner("alpha")->name, "a");
}

TEST(SiteTokens, OfOneSiteMayBeSeveralWhileTheyAreExchanged) {
  const auto tokens = Parse(std::string("a ") + kShaOfAlpha + "\na " + kShaOfBeta + "\n");
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_EQ(tokens->Owner("alpha")->name, "a");
  EXPECT_EQ(tokens->Owner("beta")->name, "a");
}

TEST(SiteTokens, FileThatIsWrongIsRefusedWithItsLine) {
  const std::string good = std::string("a ") + kShaOfAlpha + "\n";
  for (const std::string line : {"b", "b alpha", "b 8ed3", "../b f44e64e75f3948e9", "b x y"}) {
    const absl::Status status = Parse(good + line).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << line;
    EXPECT_THAT(Message(status), AllOf(HasSubstr("tokens:2: "), HasSubstr("SHA-256"))) << line;
  }
  EXPECT_THAT(Message(Parse(good + "b " + kShaOfAlpha).status()), HasSubstr("tokens:2: b has the token of a"));
  EXPECT_THAT(Message(Parse("# no tokens\n").status()), HasSubstr("got none"));
}

TEST(SiteTokens, LineMaySayARole) {
  const auto tokens = Parse(std::string("operator:oncall operate ") + kShaOfAlpha + "\nshard:1 shard " + kShaOfBeta);
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_EQ(tokens->Owner("alpha"), (Identity{"operator:oncall", Role::kOperate}));
  EXPECT_EQ(tokens->Owner("beta"), (Identity{"shard:1", Role::kShard}));
  EXPECT_EQ(Parse(std::string("operator ") + kShaOfAlpha)->Owner("alpha"), (Identity{"operator", Role::kAdmin}));
  EXPECT_EQ(Parse(std::string("a site ") + kShaOfAlpha)->Owner("alpha"), (Identity{"a", Role::kSite}));
}

TEST(SiteTokens, RoleThatDoesNotFitItsNameIsRefused) {
  const auto message = [](const std::string& words) { return Message(Parse(words + " " + kShaOfAlpha).status()); };
  for (const char* words : {"a watch", "a admin", "a shard", "a standby", "operator site", "operator:oncall",
                            "operator: watch", "operator:on:call watch", "shard:1 admin", "shard:1"}) {
    EXPECT_THAT(message(words), HasSubstr("tokens:1: expected a site's name before role site")) << words;
  }
  EXPECT_THAT(message("operator:oncall root"),
              HasSubstr("expected role site, shard, standby, watch, operate or admin"));
  EXPECT_EQ(message("a relay"), "tokens:1: role relay is reserved: this version has no such role");
  EXPECT_THAT(Message(Parse(std::string("operator watch ") + kShaOfAlpha + "\noperator admin " + kShaOfBeta).status()),
              HasSubstr("tokens:2: expected one role of a name, got another than before: operator has role watch"));
}

TEST(Revoked, SerialsAreComparedAsNumbers) {
  const auto serials = ParseRevoked("# of May\n00AB  # paris\n\n4f", "revoked");
  ASSERT_TRUE(serials.ok()) << serials.status();
  EXPECT_THAT(*serials, testing::ElementsAre("4f", "ab"));
  EXPECT_TRUE(ParseRevoked("", "revoked")->empty());
}

TEST(Revoked, LineThatIsWrongIsNamed) {
  for (const std::string line : {"paris", "AB CD", "0x4f", "12:34", "00112233445566778899001122334455667788990"}) {
    EXPECT_THAT(Message(ParseRevoked("ab\n" + line, "revoked").status()),
                AllOf(HasSubstr("revoked:2: expected a certificate's serial"), HasSubstr(line)))
        << line;
  }
}

TEST(SiteTokens, LineThatIsWrongIsNotRepeatedBecauseItMayHoldAToken) {
  EXPECT_EQ(Message(Parse("a my-secret-token").status()).find("my-secret-token"), std::string::npos);
}

// ---- Who may say what ----

class Authorize : public testing::Test {
 protected:
  void WriteTokens(const std::string& text) {
    // Replaced as people should, so that it is never seen half written.
    std::ofstream(path_ + ".new") << text;
    std::filesystem::rename(path_ + ".new", path_);
  }
  void WriteTwoSites() { WriteTokens(std::string("a ") + kShaOfAlpha + "\noperator " + kShaOfBeta + "\n"); }
  std::unique_ptr<Authorizer> With(bool mutual_tls, bool tokens) {
    auto authorizer = Authorizer::Create({mutual_tls, tokens ? path_ : "", /*tls_revoked=*/""});
    EXPECT_TRUE(authorizer.ok()) << authorizer.status();
    return *std::move(authorizer);
  }

  TemporaryFolder folder_;
  const std::string path_ = folder_ / "tokens";
};

TEST_F(Authorize, WithNeitherEverybodyIsTrusted) {
  const auto authorizer = With(/*mutual_tls=*/false, /*tokens=*/false);
  EXPECT_TRUE(authorizer->CheckSite({}, "a").ok());
  EXPECT_TRUE(authorizer->CheckCall({}, "ChangeRun STOP").ok());
  EXPECT_TRUE(authorizer->Identify({}).ok());
}

TEST_F(Authorize, TokenMustBeThatOfTheClaimedSite) {
  WriteTwoSites();
  const auto authorizer = With(/*mutual_tls=*/false, /*tokens=*/true);
  EXPECT_TRUE(authorizer->CheckSite({.token = "alpha"}, "a").ok());
  const absl::Status other = authorizer->CheckSite({.token = "alpha"}, "b");
  EXPECT_TRUE(absl::IsPermissionDenied(other));
  EXPECT_THAT(Message(other), HasSubstr("the token is that of a, not of b"));
  const absl::Status none = authorizer->CheckSite({}, "a");
  EXPECT_TRUE(absl::IsUnauthenticated(none));
  EXPECT_THAT(Message(none), HasSubstr("--token_file"));
  const absl::Status wrong = authorizer->CheckSite({.token = "gamma"}, "a");
  EXPECT_TRUE(absl::IsUnauthenticated(wrong));
  EXPECT_THAT(Message(wrong), AllOf(HasSubstr("no name has this token"), HasSubstr("--site_tokens")));
  EXPECT_EQ(Message(wrong).find("gamma"), std::string::npos);
}

TEST_F(Authorize, CertificateMustBeThatOfTheClaimedSite) {
  const auto authorizer = With(/*mutual_tls=*/true, /*tokens=*/false);
  EXPECT_TRUE(authorizer->CheckSite({.names = {"a"}}, "a").ok());
  EXPECT_TRUE(authorizer->CheckSite({.names = {"Site A, Inc.", "a"}}, "a").ok());  // a DNS name
  const absl::Status other = authorizer->CheckSite({.names = {"a", "a.example.com"}}, "b");
  EXPECT_TRUE(absl::IsPermissionDenied(other));
  EXPECT_THAT(Message(other), HasSubstr("the certificate is that of a, a.example.com, not of b"));
  EXPECT_FALSE(authorizer->CheckSite({}, "a").ok());
  EXPECT_FALSE(authorizer->CheckSite({.names = {"operator"}}, "a").ok());
  EXPECT_TRUE(authorizer->Identify({.names = {"b"}}).ok());
  EXPECT_TRUE(absl::IsUnauthenticated(authorizer->Identify({}).status()));
}

TEST_F(Authorize, WithBothTheCertificateAndTheTokenMustAgree) {
  WriteTwoSites();
  const auto authorizer = With(/*mutual_tls=*/true, /*tokens=*/true);
  EXPECT_TRUE(authorizer->CheckSite({.names = {"a"}, .token = "alpha"}, "a").ok());
  EXPECT_TRUE(absl::IsPermissionDenied(authorizer->CheckSite({.names = {"b"}, .token = "alpha"}, "a")));
  EXPECT_TRUE(absl::IsPermissionDenied(authorizer->CheckSite({.names = {"b"}, .token = "alpha"}, "b")));
  EXPECT_TRUE(absl::IsUnauthenticated(authorizer->CheckSite({.names = {"a"}}, "a")));
  EXPECT_TRUE(authorizer->Identify({.names = {"a"}, .token = "alpha"}).ok());
  EXPECT_FALSE(authorizer->Identify({.names = {"b"}, .token = "alpha"}).ok());
}

TEST_F(Authorize, OnlyTheOperatorCommandsAndNoSiteHasItsName) {
  WriteTwoSites();
  const auto tokens = With(/*mutual_tls=*/false, /*tokens=*/true);
  EXPECT_TRUE(tokens->CheckCall({.token = "beta"}, "ChangeRun STOP").ok());
  EXPECT_TRUE(tokens->Identify({.token = "beta"}).ok());
  const absl::Status site = tokens->CheckCall({.token = "alpha"}, "ChangeRun STOP");
  EXPECT_TRUE(absl::IsPermissionDenied(site));
  EXPECT_THAT(Message(site), HasSubstr("stop takes role admin, and a has role site"));
  EXPECT_TRUE(absl::IsUnauthenticated(tokens->CheckCall({}, "ChangeRun STOP")));
  EXPECT_FALSE(tokens->CheckSite({.token = "beta"}, "operator").ok());
  EXPECT_FALSE(tokens->CheckSite({.token = "beta"}, "a").ok());
  const auto tls = With(/*mutual_tls=*/true, /*tokens=*/false);
  EXPECT_TRUE(tls->CheckCall({.names = {"operator"}}, "ChangeRun STOP").ok());
  EXPECT_TRUE(absl::IsPermissionDenied(tls->CheckCall({.names = {"a"}}, "ChangeRun STOP")));
}

TEST_F(Authorize, OperatorsCertificateSaysItsRoleAsItsUnit) {
  const auto tls = With(/*mutual_tls=*/true, /*tokens=*/false);
  const auto peer = [](const std::string& name, const std::string& unit) {
    return Peer{.names = {name}, .token = "", .address = "", .call = "", .unit = unit};
  };
  EXPECT_EQ(**tls->Identify(peer("operator:oncall", "operate")), (Identity{"operator:oncall", Role::kOperate}));
  EXPECT_EQ(**tls->Identify(peer("shard:1", "shard")), (Identity{"shard:1", Role::kShard}));
  EXPECT_EQ(**tls->Identify(peer("operator", "watch")), (Identity{"operator", Role::kWatch}));
  EXPECT_EQ(**tls->Identify(peer("a", "admin")), (Identity{"a", Role::kSite}));
  for (const auto& [name, unit] : {std::pair("operator:oncall", ""),
                                   {"operator:oncall", "shard"},
                                   {"shard:1", "admin"},
                                   {"operator:oncall", "relay"}}) {
    EXPECT_THAT(Message(tls->Identify(peer(name, unit)).status()), HasSubstr("has no role: expected")) << name << unit;
  }
}

TEST_F(Authorize, RevokedCertificateIsRefusedFromTheNextLookAtTheFileOn) {
  const std::string revoked = folder_.Write("revoked", "ab\n");
  const auto authorizer = *Authorizer::Create({.mutual_tls = true, .site_tokens = "", .tls_revoked = revoked});
  const auto with = [&](const std::string& serial) {
    return authorizer->CheckSite({.names = {"a"}, .token = "", .address = "", .call = "", .unit = "", .serial = serial},
                                 "a");
  };
  EXPECT_TRUE(with("cd").ok());
  EXPECT_TRUE(absl::IsUnauthenticated(with("ab")));
  const uint64_t before = authorizer->Revision();
  folder_.Write("revoked", "ab\n0CD\n");
  EXPECT_NE(authorizer->Revision(), before);
  EXPECT_THAT(Message(with("cd")), HasSubstr("the certificate with serial cd is revoked"));
  folder_.Write("revoked", "paris\n");
  EXPECT_FALSE(with("cd").ok()) << "what was read before stays in force";
}

TEST_F(Authorize, FileOfRevokedCertificatesNeedsTls) {
  EXPECT_THAT(Message(Authorizer::Create({.tls_revoked = folder_.Write("revoked", "")}).status()),
              HasSubstr("expected --tls_ca, --tls_cert and --tls_key with it"));
}

TEST_F(Authorize, TokensAreReadAgainWhenTheFileChanges) {
  WriteTwoSites();
  const auto authorizer = With(/*mutual_tls=*/false, /*tokens=*/true);
  WriteTokens(std::string("a ") + kShaOfBeta + "\n");
  EXPECT_FALSE(authorizer->CheckSite({.token = "alpha"}, "a").ok());
  EXPECT_TRUE(authorizer->CheckSite({.token = "beta"}, "a").ok());
}

TEST_F(Authorize, FileThatWentWrongChangesNothing) {
  WriteTwoSites();
  const auto authorizer = With(/*mutual_tls=*/false, /*tokens=*/true);
  WriteTokens("a alpha\n");
  EXPECT_TRUE(authorizer->CheckSite({.token = "alpha"}, "a").ok());
  std::filesystem::remove(path_);
  EXPECT_TRUE(authorizer->CheckSite({.token = "alpha"}, "a").ok());
  WriteTokens(std::string("a ") + kShaOfBeta + "\n");
  EXPECT_FALSE(authorizer->CheckSite({.token = "alpha"}, "a").ok());
}

TEST_F(Authorize, FileThatIsNotThereAtTheStartIsAnError) {
  const absl::Status status = Authorizer::Create({.site_tokens = path_}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(Message(status), AllOf(HasSubstr("--site_tokens=" + path_), HasSubstr("No such file")));
}

}  // namespace
}  // namespace causeway::server
