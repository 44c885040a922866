// How a session takes its coordinator's welcomes, and what it tells later.
#include "tests/transport/session_for_test.h"

namespace causeway::transport {
namespace {

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

}  // namespace
}  // namespace causeway::transport
