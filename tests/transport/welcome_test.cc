// How a session takes its coordinator's welcomes, and what it tells later.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <map>

#include "absl/strings/str_cat.h"
#include "tests/transport/session_for_test.h"
#include "transport/channel.h"
#include "transport/shown_proofs.h"

namespace causeway::transport {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Variables = std::map<std::string, std::string>;

// ---- The meaning of a welcome ----

TEST_F(ControlSessionTest, AWelcomeIsToldAsItCame) {
  v1::Welcome welcome = WelcomeOf("l", 1, 5, true);
  welcome.set_stay(3);
  welcome.add_last_admitted(-1);
  welcome.add_last_admitted(8);
  const Welcome told = Take(welcome);
  EXPECT_TRUE(told.resumed);
  EXPECT_EQ(told.stay, 3);
  EXPECT_EQ(told.generation, 5u);
  EXPECT_EQ(told.last_admitted, (std::vector<core::Version>{-1, 8}));
  EXPECT_FALSE(Take(WelcomeOf("l", 1, std::nullopt, true)).generation.has_value()) << "a coordinator of before";
}

TEST_F(ControlSessionTest, TheEpochNeverFallsInOneLineageAndIsTheNewOnesInAnother) {
  Take(WelcomeOf("l", 9, 1, false));
  Take(WelcomeOf("l", 7, 1, false));
  EXPECT_EQ(session_.Context().epoch(), 9u);
  Take(WelcomeOf("m", 2, 1, false));
  EXPECT_EQ(session_.Context().epoch(), 2u);
  EXPECT_EQ(session_.remembered().lineage, "m");
}

TEST_F(ControlSessionTest, TheFirstLineageIsNoOtherOne) {
  EXPECT_TRUE(Take(WelcomeOf("l", 1, 1, false)).same_lineage);
  EXPECT_TRUE(Take(WelcomeOf("l", 2, 1, false)).same_lineage);
  EXPECT_FALSE(Take(WelcomeOf("m", 1, 1, false)).same_lineage);
  EXPECT_TRUE(Take(WelcomeOf("m", 1, 1, false)).same_lineage) << "it is the known one now";
}

TEST_F(ControlSessionTest, AWelcomeWithoutAGenerationIsNoNewsOfIt) {
  Take(WelcomeOf("l", 1, 4, true));
  EXPECT_TRUE(Take(WelcomeOf("l", 1, std::nullopt, true)).kept_transfers);
  EXPECT_EQ(session_.generation(), 4u);
  EXPECT_FALSE(Take(WelcomeOf("l", 1, 5, true)).kept_transfers);
  EXPECT_EQ(session_.generation(), 5u);
}

struct Case {
  bool resumed, joining, same_lineage, same_model;
  bool keeps;
};

TEST_F(ControlSessionTest, TransfersAreKeptByAResumedOrJoiningSiteWhileTheModelIsTheSame) {
  const Case cases[] = {
      {.resumed = true, .joining = false, .same_lineage = true, .same_model = true, .keeps = true},
      {.resumed = true, .joining = true, .same_lineage = true, .same_model = true, .keeps = true},
      {.resumed = true, .joining = false, .same_lineage = true, .same_model = false, .keeps = false},
      {.resumed = false, .joining = true, .same_lineage = true, .same_model = true, .keeps = true},
      {.resumed = false, .joining = true, .same_lineage = true, .same_model = false, .keeps = false},
      {.resumed = false, .joining = true, .same_lineage = false, .same_model = true, .keeps = false},
      {.resumed = false, .joining = false, .same_lineage = true, .same_model = true, .keeps = false},
      {.resumed = false, .joining = false, .same_lineage = false, .same_model = false, .keeps = false},
  };
  for (const Case& each : cases) {
    ControlSession session("eu", {}, 0, "s");
    session.Take(WelcomeOf("l", 1, 1, false), {});
    v1::Join join;
    session.Join(each.joining, &join);
    const Welcome told =
        session.Take(WelcomeOf(each.same_lineage ? "l" : "m", 1, each.same_model ? 1 : 2, each.resumed), {});
    EXPECT_EQ(told.kept_transfers, each.keeps) << "resumed " << each.resumed << ", joining " << each.joining
                                               << ", lineage " << each.same_lineage << ", model " << each.same_model;
    EXPECT_EQ(told.same_lineage, each.same_lineage);
  }
}

TEST_F(ControlSessionTest, WhetherItIsJoiningIsAsTheLastJoinSaid) {
  Join(/*joining=*/true);
  Take(WelcomeOf("l", 1, 1, false));
  session_.Ended(kLost, 1);
  Join(/*joining=*/false);
  EXPECT_FALSE(Take(WelcomeOf("l", 1, 1, false)).kept_transfers);
}

// ---- Pings ----

TEST_F(ControlSessionTest, EveryReportPingsWhileWelcomed) {
  EXPECT_FALSE(Pings(10'000));
  JoinAndEnter();
  EXPECT_TRUE(Pings(10'000));
  EXPECT_TRUE(Pings(10'020));
  session_.Ended(kLost, 10'600);
  EXPECT_FALSE(Pings(20'000));
}

TEST_F(ControlSessionTest, AReportSaysHowLongAgoTheCoordinatorWasHeardOf) {
  v1::Progress report;
  session_.Report(10'000, &report);
  EXPECT_FALSE(report.has_unheard_ms()) << "it has not been welcomed";
  session_.Heard(10'000);
  JoinAndEnter();
  session_.Report(10'700, &report);
  EXPECT_EQ(report.unheard_ms(), 700);
}

// ---- Which life of which lineage ----

TEST_F(ControlSessionTest, TheLifeIsThatOfTheEpochThatIsKnown) {
  const auto take = [this](uint64_t epoch, uint64_t life) {
    v1::Welcome welcome = WelcomeOf("l", epoch, 1, false);
    welcome.set_life(life);
    Take(welcome);
    return session_.Context().life();
  };
  EXPECT_EQ(session_.Context().life(), 0u);
  EXPECT_EQ(take(3, 33), 33u);
  EXPECT_EQ(take(4, 44), 44u);
  EXPECT_EQ(take(3, 33), 44u) << "of an older one";
}

TEST_F(ControlSessionTest, ASiteWhoseNameWasGivenUpHoldsNothingOfTheLineage) {
  Take(WelcomeOf("l", 9, 1, false));
  v1::Welcome welcome = WelcomeOf("l", 9, 1, false);
  welcome.set_forgotten(true);
  EXPECT_FALSE(Take(welcome).same_lineage);
  EXPECT_TRUE(Take(WelcomeOf("l", 9, 1, true)).same_lineage);
}

TEST_F(ControlSessionTest, ALineageThatContinuesTheKnownOneIsNoOther) {
  Take(WelcomeOf("l", 9, 1, false));
  v1::Welcome rebuilt = WelcomeOf("m", 2, 1, false);
  rebuilt.set_continues("l");
  EXPECT_TRUE(Take(rebuilt).same_lineage);
  EXPECT_EQ(session_.remembered().lineage, "m");
  EXPECT_EQ(session_.Context().epoch(), 2u) << "epochs are of a lineage";
  rebuilt = WelcomeOf("n", 1, 1, false);
  rebuilt.set_continues("l");
  EXPECT_FALSE(Take(rebuilt).same_lineage);
}

const std::string kBytes("\0\xff,:", 4);  // any

v1::Join JoinWith(const ShownProofs& proofs, core::Version version, core::Version admitted) {
  v1::Join join;
  join.add_versions(3);
  join.add_versions(version);
  join.add_admitted(-1);
  join.add_admitted(admitted);
  proofs.AddTo(&join);
  return join;
}

TEST(ShownProofs, AreThoseOfTheClaimsAndEmptyWhereThereIsNone) {
  ShownProofs proofs;
  proofs.HasEpoch({5, 9}, "e");
  proofs.HasVersion(1, 7, kBytes);
  proofs.HasAdmitted(1, 6, "a");
  const v1::Join join = JoinWith(proofs, 7, 6);
  EXPECT_EQ(join.epoch_proof(), "e");
  EXPECT_EQ(join.version_proofs(0), "");
  EXPECT_EQ(join.version_proofs(1), kBytes);
  EXPECT_EQ(join.admission_proofs(0), "");
  EXPECT_EQ(join.admission_proofs(1), "a");
  EXPECT_EQ(JoinWith(proofs, 8, 7).version_proofs(1), "") << "of another version";
}

TEST(ShownProofs, TheNewestOfAFragmentAreKept) {
  ShownProofs proofs;
  for (core::Version version = 0; version < 10; ++version) proofs.HasVersion(1, version, absl::StrCat(version));
  EXPECT_EQ(JoinWith(proofs, 9, 0).version_proofs(1), "9");
  EXPECT_EQ(JoinWith(proofs, 6, 0).version_proofs(1), "6");
  EXPECT_EQ(JoinWith(proofs, 5, 0).version_proofs(1), "");
}

TEST(ShownProofs, OfACoordinatorThatGivesNoneLeaveThoseBefore) {
  ShownProofs proofs;
  proofs.HasVersion(1, 7, "p");
  proofs.HasVersion(1, 7, "");
  EXPECT_EQ(JoinWith(proofs, 7, 0).version_proofs(1), "p");
}

TEST(ShownProofs, ComeBackFromTheirText) {
  ShownProofs before, after;
  before.HasEpoch({uint64_t{1} << 32, 18446744073709551615u}, "e");
  before.HasVersion(1, 7, kBytes);
  before.HasAdmitted(1, 6, "a");
  EXPECT_EQ(before.Text(), "e:4294967296:18446744073709551615:65 v:1:7:00ff2c3a a:1:6:61");
  after.Restore(before.Text());
  EXPECT_EQ(after.epoch().epoch, uint64_t{1} << 32);
  EXPECT_EQ(after.epoch().life, 18446744073709551615u);
  const v1::Join join = JoinWith(after, 7, 6);
  EXPECT_EQ(join.version_proofs(1), kBytes);
  EXPECT_EQ(join.admission_proofs(1), "a");
}

TEST(ShownProofs, WhatIsNoTextOfThemIsLeftOut) {
  ShownProofs proofs;
  proofs.Restore("v:1:7 x:1:7:61 v:one:7:61  v:1:7:61 e:1:61 e:x:1:61 :::");
  EXPECT_EQ(proofs.Text(), "v:1:7:61");
}

absl::StatusOr<std::optional<Proxy>> Find(const Variables& variables,
                                          const core::Address& coordinator = {"eu.example.com", 7077}) {
  return FindProxy(coordinator, [&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

// "proxy:3128 of https_proxy", "directly", or why not.
std::string Described(const absl::StatusOr<std::optional<Proxy>>& found) {
  if (!found.ok()) return std::string(found.status().message());
  return *found ? (*found)->address.Text() + " of " + (*found)->source : "directly";
}

TEST(FindProxy, TakesThoseOfGrpcAndTheirCapitalLettersAndThatOfAll) {
  for (const char* name :
       {"grpc_proxy", "https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"}) {
    for (const char* value : {"http://proxy:3128", "HTTP://proxy:3128/", "proxy:3128", " proxy:3128 "}) {
      EXPECT_EQ(Described(Find({{name, value}})), std::string("proxy:3128 of ") + name) << value;
    }
  }
  EXPECT_EQ(Described(Find({{"ALL_PROXY", "a:1"}, {"HTTPS_PROXY", "b:2"}, {"https_proxy", ""}})), "b:2 of HTTPS_PROXY");
  EXPECT_EQ(Described(Find({{"http_proxy", "http://[fd00::1]:3128"}})), "[fd00::1]:3128 of http_proxy");
}

TEST(FindProxy, RefusesWhereThereIsNone) {
  for (const Variables& variables : {Variables(), Variables{{"https_proxy", ""}}, Variables{{"no_proxy", "*"}}}) {
    EXPECT_EQ(
        Described(Find(variables)),
        "--use_proxy: expected a proxy in https_proxy, http_proxy, all_proxy or grpc_proxy of the environment, got "
        "none of them");
  }
}

TEST(FindProxy, RefusesWhatGrpcCannotUseAndKeepsThePassword) {
  EXPECT_EQ(Described(Find({{"ALL_PROXY", "socks5://me:secret@proxy:1080"}})),
            "--use_proxy: ALL_PROXY: expected an HTTP proxy, http://[USER:PASSWORD@]HOST:PORT, got "
            "'socks5://…@proxy:1080': gRPC cannot use one of socks5://");
  EXPECT_THAT(Described(Find({{"https_proxy", "https://proxy:3128"}})), HasSubstr("speaks no TLS to a proxy"));
  for (const char* value : {"http://proxy", "me:secret@proxy", "http://me:secret@:3128", "http://proxy:x"}) {
    EXPECT_THAT(Described(Find({{"http_proxy", value}})), HasSubstr("http_proxy: expected an HTTP proxy")) << value;
    EXPECT_THAT(Described(Find({{"http_proxy", value}})), Not(HasSubstr("secret"))) << value;
  }
}

TEST(FindProxy, DecodesTheCredentials) {
  const auto credentials = [](const std::string& value) { return (*Find({{"https_proxy", value}}))->credentials; };
  EXPECT_EQ(credentials("http://proxy:1"), "");
  EXPECT_EQ(credentials("http://me:p%40ss%3aw%2Frd@proxy:1"), "me:p@ss:w/rd");
  EXPECT_EQ(credentials("http://me:p@ss@proxy:1"), "me:p@ss") << "the last @ ends them";
  EXPECT_EQ(credentials("me:100%@proxy:1"), "me:100%");
  EXPECT_EQ(ProxyHeader("Aladdin:open sesame"), "Proxy-Authorization:Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
}

TEST(FindProxy, GoesDirectlyToTheHostsOfNoProxy) {
  const auto with = [](const std::string& direct, const core::Address& coordinator = {"eu.example.com", 7077}) {
    return Described(Find({{"https_proxy", "proxy:1"}, {"NO_PROXY", direct}}, coordinator));
  };
  for (const char* direct : {"*", "eu.example.com", "EU.Example.com", ".example.com", "example.com", "*.example.com",
                             "a, b ,example.com", "a b example.com", "eu.example.com:7077"}) {
    EXPECT_EQ(with(direct), "directly") << direct;
  }
  for (const char* direct : {"", ",", ".", "ample.com", "us.example.com", "eu.example.com:80", "eu.example.com.org"}) {
    EXPECT_EQ(with(direct), "proxy:1 of https_proxy") << direct;
  }
  for (const char* direct : {"10.1.2.3", "10.0.0.0/8", "10.1.2.2/31", "0.0.0.0/0"}) {
    EXPECT_EQ(with(direct, {"10.1.2.3", 1}), "directly") << direct;
  }
  for (const char* direct : {"10.1.2.4", "10.2.0.0/16", "10.0.0.0/33", "10.0.0.0/", "fd00::/8"}) {
    EXPECT_EQ(with(direct, {"10.1.2.3", 1}), "proxy:1 of https_proxy") << direct;
  }
  for (const char* direct : {"::1", "[::1]", "[::1]:7077", "::/0"}) {
    EXPECT_EQ(with(direct, {"::1", 7077}), "directly") << direct;
  }
  EXPECT_EQ(Described(Find({{"https_proxy", "proxy:1"}, {"no_proxy", "a"}, {"NO_PROXY", "*"}})),
            "proxy:1 of https_proxy")
      << "lower case first";
}

}  // namespace
}  // namespace causeway::transport
