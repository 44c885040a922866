#include "server/service/authorizer.h"

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
  EXPECT_EQ(tokens->Owner("alpha"), "a");
  EXPECT_EQ(tokens->Owner("beta"), "b");
  for (const char* token : {"", "gamma", "alph", "alpha ", kShaOfAlpha}) EXPECT_EQ(tokens->Owner(token), "") << token;
}

TEST(SiteTokens, OfOneSiteMayBeSeveralWhileTheyAreExchanged) {
  const auto tokens = Parse(std::string("a ") + kShaOfAlpha + "\na " + kShaOfBeta + "\n");
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_EQ(tokens->Owner("alpha"), "a");
  EXPECT_EQ(tokens->Owner("beta"), "a");
}

TEST(SiteTokens, FileThatIsWrongIsRefusedWithItsLine) {
  const std::string good = std::string("a ") + kShaOfAlpha + "\n";
  for (const std::string line : {"b", "b alpha", "b 8ed3", "../b f44e64e75f3948e9", "b x y"}) {
    const absl::Status status = Parse(good + line).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << line;
    EXPECT_THAT(Message(status), AllOf(HasSubstr("tokens:2: "), HasSubstr("SHA-256"))) << line;
  }
  EXPECT_THAT(Message(Parse(good + "b " + kShaOfAlpha).status()),
              HasSubstr("tokens:2: site b has the token of site a"));
  EXPECT_THAT(Message(Parse("# nobody\n").status()), HasSubstr("got none"));
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
    auto authorizer = Authorizer::Create({mutual_tls, tokens ? path_ : ""});
    EXPECT_TRUE(authorizer.ok()) << authorizer.status();
    return *std::move(authorizer);
  }

  TemporaryFolder folder_;
  const std::string path_ = folder_ / "tokens";
};

TEST_F(Authorize, WithNeitherEverybodyIsTrusted) {
  const auto authorizer = With(/*mutual_tls=*/false, /*tokens=*/false);
  EXPECT_TRUE(authorizer->CheckSite({}, "a").ok());
  EXPECT_TRUE(authorizer->CheckOperator({}).ok());
  EXPECT_TRUE(authorizer->CheckAnyone({}).ok());
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
  EXPECT_THAT(Message(wrong), AllOf(HasSubstr("nobody's"), HasSubstr("--site_tokens")));
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
  EXPECT_TRUE(authorizer->CheckAnyone({.names = {"b"}}).ok());
  EXPECT_TRUE(absl::IsUnauthenticated(authorizer->CheckAnyone({})));
}

TEST_F(Authorize, WithBothTheCertificateAndTheTokenMustAgree) {
  WriteTwoSites();
  const auto authorizer = With(/*mutual_tls=*/true, /*tokens=*/true);
  EXPECT_TRUE(authorizer->CheckSite({.names = {"a"}, .token = "alpha"}, "a").ok());
  EXPECT_TRUE(absl::IsPermissionDenied(authorizer->CheckSite({.names = {"b"}, .token = "alpha"}, "a")));
  EXPECT_TRUE(absl::IsPermissionDenied(authorizer->CheckSite({.names = {"b"}, .token = "alpha"}, "b")));
  EXPECT_TRUE(absl::IsUnauthenticated(authorizer->CheckSite({.names = {"a"}}, "a")));
  EXPECT_TRUE(authorizer->CheckAnyone({.names = {"a"}, .token = "alpha"}).ok());
  EXPECT_FALSE(authorizer->CheckAnyone({.names = {"b"}, .token = "alpha"}).ok());
}

TEST_F(Authorize, OnlyTheOperatorCommandsAndNoSiteHasItsName) {
  WriteTwoSites();
  const auto tokens = With(/*mutual_tls=*/false, /*tokens=*/true);
  EXPECT_TRUE(tokens->CheckOperator({.token = "beta"}).ok());
  EXPECT_TRUE(tokens->CheckAnyone({.token = "beta"}).ok());
  const absl::Status site = tokens->CheckOperator({.token = "alpha"});
  EXPECT_TRUE(absl::IsPermissionDenied(site));
  EXPECT_THAT(Message(site), HasSubstr("operator's identity"));
  EXPECT_TRUE(absl::IsUnauthenticated(tokens->CheckOperator({})));
  EXPECT_FALSE(tokens->CheckSite({.token = "beta"}, "operator").ok());
  EXPECT_FALSE(tokens->CheckSite({.token = "beta"}, "a").ok());
  const auto tls = With(/*mutual_tls=*/true, /*tokens=*/false);
  EXPECT_TRUE(tls->CheckOperator({.names = {"operator"}}).ok());
  EXPECT_TRUE(absl::IsPermissionDenied(tls->CheckOperator({.names = {"a"}})));
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
