#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <limits>

#include "absl/strings/str_cat.h"
#include "core/limits.h"
#include "formats/posix_file.h"
#include "tests/transport/least_wait.h"
#include "tests/transport/session_for_test.h"
#include "transport/answers.h"
#include "transport/backoff.h"
#include "transport/first_address.h"

namespace causeway::transport {
namespace {

using testing::EndsWith;
using testing::HasSubstr;

// ---- Joined, and not ----

TEST_F(ControlSessionTest, AStreamThatBeginsIsRunningAndOneThatEndsIsNot) {
  EXPECT_FALSE(session_.running());
  Join();
  EXPECT_TRUE(session_.running());
  EXPECT_FALSE(session_.welcomed());
  Take(WelcomeOf("l", 1, 1, false));
  EXPECT_FALSE(session_.welcomed()) << "its listener has not heard of it";
  session_.Enter();
  EXPECT_TRUE(session_.welcomed());
  EXPECT_TRUE(session_.running());
  session_.Ended(kLost, 5);
  EXPECT_FALSE(session_.running());
  EXPECT_FALSE(session_.welcomed());
}

TEST_F(ControlSessionTest, TheFirstJoinWaitsForNothing) {
  EXPECT_FALSE(session_.HasToWait());
  Join();
  EXPECT_FALSE(session_.HasToWait()) << "while a stream runs";
}

TEST_F(ControlSessionTest, EachJoinThatIsNotAnsweredDoublesTheWaitUpToTheLast) {
  int64_t expected_ms = kFirstWaitMs;
  for (int attempt = 0; attempt < 10; ++attempt) {
    JoinAndLose(100 * attempt);
    ASSERT_TRUE(session_.HasToWait());
    EXPECT_EQ(NextWaitMs(), expected_ms) << attempt;
    expected_ms = std::min(2 * expected_ms, core::kLastBackoffMs * 8 / 10);
  }
}

TEST_F(ControlSessionTest, AWelcomeBeginsTheWaitsAnew) {
  for (int attempt = 0; attempt < 4; ++attempt) JoinAndLose(1);
  JoinAndEnter();
  session_.Ended(kLost, 2);
  EXPECT_EQ(NextWaitMs(), kFirstWaitMs);
  JoinAndLose(3);
  EXPECT_EQ(NextWaitMs(), 2 * kFirstWaitMs);
}

TEST_F(ControlSessionTest, TheRandomNumberSpreadsTheWait) {
  JoinAndLose(1);
  EXPECT_NEAR(static_cast<double>(session_.TakeWait(std::numeric_limits<uint64_t>::max()).ms),
              1.2 * core::kFirstBackoffMs, 1);
}

TEST_F(ControlSessionTest, WhenTheCoordinatorSaysWhenToComeBackItIsNotEarlierAndOnlyOnce) {
  JoinAndBeRefused(7000);
  EXPECT_EQ(NextWaitMs(), 7000);
  JoinAndLose(3);
  EXPECT_EQ(NextWaitMs(), 2 * kFirstWaitMs);
}

TEST_F(ControlSessionTest, ComingBackIsNeverSoonerThanTheBackoff) {
  int64_t backoff_ms = kFirstWaitMs;
  for (const int64_t asked_ms : {int64_t{1}, int64_t{-1}, std::numeric_limits<int64_t>::min()}) {
    JoinAndBeRefused(asked_ms);
    EXPECT_EQ(NextWaitMs(), backoff_ms) << asked_ms;
    backoff_ms *= 2;
  }
}

TEST_F(ControlSessionTest, ComingBackIsNeverLaterThanInAnHour) {
  JoinAndBeRefused(std::numeric_limits<int64_t>::max());
  EXPECT_EQ(NextWaitMs(), 3'600'000);
}

TEST_F(ControlSessionTest, TheWaitSaysWhyTheStreamEnded) {
  JoinAndLose(1);
  EXPECT_EQ(session_.TakeWait(kLeast).error, "the connection is lost");
  Join();
  session_.Ended(grpc::Status::OK, 1);
  EXPECT_EQ(session_.TakeWait(kLeast).error, "the coordinator ended it");
  JoinAndBeRefused(5);
  EXPECT_EQ(session_.TakeWait(kLeast).error, "not yet") << "the refusal's reason stays";
}

TEST_F(ControlSessionTest, OnlyAStreamThatBrokeBeforeItsWelcomeHadNoConnection) {
  JoinAndLose(1);
  EXPECT_TRUE(session_.TakeWait(kLeast).unconnected);
  Join();
  session_.Ended({grpc::StatusCode::INTERNAL, "x"}, 1);
  EXPECT_FALSE(session_.TakeWait(kLeast).unconnected) << "there was an answer";
  JoinAndEnter();
  session_.Ended(kLost, 1);
  EXPECT_FALSE(session_.TakeWait(kLeast).unconnected) << "there was a welcome";
}

// ---- Unreachable for too long ----

TEST_F(ControlSessionTest, ItGivesUpWhenNoCoordinatorWasReachedForTheTimeAllowed) {
  session_.Begin(1000);
  JoinAndLose(2000);
  EXPECT_TRUE(GivesUpAt(11'000));
}

TEST_F(ControlSessionTest, AWelcomeBeginsTheTimeAllowedAnewWhenItsStreamBreaks) {
  session_.Begin(1000);
  JoinAndEnter();
  session_.Ended(kLost, 50'000);
  EXPECT_TRUE(GivesUpAt(60'000));
  JoinAndLose(55'000);
  EXPECT_TRUE(session_.GivesUp(60'000).has_value()) << "a join without an answer begins nothing anew";
}

TEST_F(ControlSessionTest, ACoordinatorThatSaysWhenToComeBackWasReached) {
  session_.Begin(1000);
  JoinAndBeRefused(5, 9000);
  EXPECT_TRUE(GivesUpAt(19'000));
}

TEST_F(ControlSessionTest, WithoutATimeAllowedItNeverGivesUp) {
  ControlSession session("eu", {}, /*connect_timeout_s=*/0, "s");
  session.Begin(1);
  EXPECT_FALSE(session.GivesUp(int64_t{1} << 60).has_value());
}

TEST_F(ControlSessionTest, ASessionThatIsOverDoesNotGiveUp) {
  session_.Begin(1000);
  session_.Stop();
  EXPECT_FALSE(session_.GivesUp(100'000).has_value());
}

// ---- Who speaks ----

TEST_F(ControlSessionTest, TheContextSaysWhoSpeaksAndToWhichLifeOfWhichRun) {
  session_.SetRun("run");
  Take(WelcomeOf("l", 4, 1, false));
  const v1::Context context = session_.Context();
  EXPECT_EQ(context.protocol(), kProtocol);
  EXPECT_EQ(context.run_id(), "run");
  EXPECT_EQ(context.site(), "eu");
  EXPECT_EQ(context.session(), "s1");
  EXPECT_EQ(context.epoch(), 4u);
  EXPECT_EQ(context.lineage(), "l");
  EXPECT_EQ(context.shard(), 1);
  EXPECT_EQ(context.num_shards(), 3);
  EXPECT_EQ(context.world(), 1);
}

TEST_F(ControlSessionTest, AResumedSessionNamesTheEarlierOneAndItsLineage) {
  session_.Resume("s0", {"old", ""});
  EXPECT_EQ(session_.id(), "s0");
  EXPECT_EQ(Join().context().session(), "s0");
  EXPECT_EQ(Join().context().lineage(), "old");
  EXPECT_FALSE(Take(WelcomeOf("new", 1, 1, false)).same_lineage);
}

TEST_F(ControlSessionTest, AJoinNamesTheStayThatItWasGiven) {
  EXPECT_EQ(Join().stay(), 0);
  session_.SetStay(7);
  EXPECT_EQ(Join().stay(), 7);
}

// ---- The end ----

v1::SiteMessage LeaveMessage() {
  v1::SiteMessage message;
  message.mutable_leave()->set_reason("done");
  return message;
}

TEST_F(ControlSessionTest, ALeaveIsHeardWhenTheCoordinatorEndsTheStreamAfterIt) {
  JoinAndEnter();
  session_.Leave(LeaveMessage());
  EXPECT_FALSE(session_.HasLeft(/*finished=*/true));
  session_.Ended(grpc::Status::OK, 1);
  EXPECT_TRUE(session_.HasLeft(true));
  EXPECT_TRUE(session_.stopping());
}

TEST_F(ControlSessionTest, AStreamThatBreaksUnwelcomedOrWithAnErrorOrWithoutALeaveIsNotHeard) {
  JoinAndEnter();
  session_.Ended(grpc::Status::OK, 1);
  EXPECT_FALSE(session_.HasLeft(true)) << "no leave was sent";
  session_.Leave(LeaveMessage());
  Join();
  session_.Ended(grpc::Status::OK, 2);
  EXPECT_FALSE(session_.HasLeft(true)) << "it was not welcomed";
  JoinAndEnter();
  session_.Ended(kLost, 3);
  EXPECT_FALSE(session_.HasLeft(true)) << "the connection was lost";
  EXPECT_FALSE(session_.stopping());
}

TEST_F(ControlSessionTest, AWelcomeBringsTheLeaveThatWasNotHeardAgain) {
  Join();
  EXPECT_FALSE(session_.Enter().has_value());
  session_.Leave(LeaveMessage());
  session_.Ended(kLost, 1);
  Join();
  ASSERT_TRUE(session_.Enter().has_value());
  EXPECT_EQ(session_.Enter()->leave().reason(), "done");
}

TEST_F(ControlSessionTest, OnlyAFinishedSiteWaitsForAStreamToSaySo) {
  EXPECT_TRUE(session_.HasLeft(/*finished=*/false)) << "there is no stream";
  EXPECT_FALSE(session_.HasLeft(/*finished=*/true));
  Join();
  EXPECT_FALSE(session_.HasLeft(false));
}

TEST_F(ControlSessionTest, AFailureOrAHurryEndsTheWaitForALeave) {
  JoinAndEnter();
  session_.Hurry();
  EXPECT_TRUE(session_.HasLeft(true));
  EXPECT_FALSE(session_.over());
  ControlSession failed("eu", {}, 0, "s");
  EXPECT_TRUE(failed.Fail());
  EXPECT_TRUE(failed.HasLeft(true));
  EXPECT_TRUE(failed.over());
  EXPECT_FALSE(failed.stopping());
}

TEST_F(ControlSessionTest, ItFailsOnce) {
  EXPECT_TRUE(session_.Fail());
  EXPECT_FALSE(session_.Fail());
}

TEST_F(ControlSessionTest, AStoppedSessionIsOver) {
  EXPECT_FALSE(session_.over());
  session_.Stop();
  EXPECT_TRUE(session_.stopping());
  EXPECT_TRUE(session_.over());
}

TEST(ControlRefusal, IsWhatAskingAgainDoesNotMend) {
  for (int code = 0; code <= 16; ++code) {
    const bool refusal = code == grpc::StatusCode::UNAUTHENTICATED || code == grpc::StatusCode::PERMISSION_DENIED;
    EXPECT_EQ(IsRefusal({static_cast<grpc::StatusCode>(code), ""}), refusal) << code;
  }
}

constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();

TEST(Backoff, DoublesFromTheFirstToTheLast) {
  constexpr uint64_t kMiddle = uint64_t{1} << 63;
  EXPECT_EQ(BackoffMs(0, kMiddle), core::kFirstBackoffMs);
  EXPECT_EQ(BackoffMs(1, kMiddle), 2 * core::kFirstBackoffMs);
  EXPECT_EQ(BackoffMs(3, kMiddle), 8 * core::kFirstBackoffMs);
  EXPECT_EQ(BackoffMs(5, kMiddle), core::kLastBackoffMs);
}

TEST(Backoff, SpreadsByAFifthEitherWay) {
  EXPECT_EQ(BackoffMs(0, kLeast), core::kFirstBackoffMs * 8 / 10);
  EXPECT_NEAR(static_cast<double>(BackoffMs(0, kMost)), 1.2 * core::kFirstBackoffMs, 1);
}

TEST(Backoff, AnyAttemptIsWithinBounds) {
  for (int attempt : {-1, 0, 6, 16, 17, 63, 64, 1 << 30, std::numeric_limits<int>::max()}) {
    EXPECT_GE(BackoffMs(attempt, kLeast), core::kFirstBackoffMs * 8 / 10) << attempt;
    EXPECT_LE(BackoffMs(attempt, kMost), core::kLastBackoffMs * 12 / 10) << attempt;
  }
}

TEST(FirstAddress, IsAskedForNamesWithSeveralAlone) {
  EXPECT_EQ(FirstThatAnswers({"127.0.0.1", 7077}, ""), std::nullopt);
  EXPECT_EQ(FirstThatAnswers({"::1", 7077}, ""), std::nullopt);
  EXPECT_EQ(FirstThatAnswers({"fe80::1%lo", 7077}, ""), std::nullopt);
  EXPECT_EQ(FirstThatAnswers({"no.such.host.invalid", 7077}, ""), std::nullopt);
}

// Where localhost has ::1 as well, that one refuses at once; else it has one address.
TEST(FirstAddress, IsTheOneThatListens) {
  const formats::FileDescriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at = {.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
  socklen_t bytes = sizeof(at);
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&at), bytes), 0);
  ASSERT_EQ(::listen(listener.get(), 8), 0);
  ASSERT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&at), &bytes), 0);
  const auto first = FirstThatAnswers({"localhost", ntohs(at.sin_port)}, "");
  if (first) {
    EXPECT_EQ(first->host, "127.0.0.1");
  }
}

TEST(Answers, OfTwoCoordinatorsInTurnAreNamedAndANewStateIsNot) {
  Answers answers;
  answers.Heard("aa", 0);
  answers.Heard("aa", 10);
  EXPECT_EQ(answers.TwoInTurn(10), "");
  answers.Heard("bb", 20);
  answers.Heard("", 25);  // a state that is being rebuilt has none
  answers.Heard("bb", 30);
  EXPECT_EQ(answers.TwoInTurn(30), "") << "the first may be gone";
  answers.Heard("aa", 40);
  EXPECT_EQ(answers.TwoInTurn(40), "aa and bb");
}

TEST(Answers, CountForAMinute) {
  Answers answers;
  for (const char* lineage : {"aa", "bb", "aa"}) answers.Heard(lineage, 0);
  EXPECT_NE(answers.TwoInTurn(Answers::kKeptMs), "");
  EXPECT_EQ(answers.TwoInTurn(Answers::kKeptMs + 1), "");
  answers.Heard("bb", 2 * Answers::kKeptMs);
  EXPECT_EQ(answers.TwoInTurn(2 * Answers::kKeptMs), "") << "the other one has been stopped";
}

TEST(Answers, WithoutTheTrailerAreAProxysUnlessThisEndMadeThem) {
  using Code = grpc::StatusCode;
  for (const Code code : {Code::OK, Code::CANCELLED, Code::DEADLINE_EXCEEDED, Code::UNAVAILABLE, Code::INTERNAL,
                          Code::RESOURCE_EXHAUSTED, Code::UNKNOWN}) {
    const grpc::Status own(code, "failed to connect to all addresses");
    EXPECT_EQ(OfNoCoordinator(own).error_code(), code);
    EXPECT_EQ(OfNoCoordinator(own).error_message(), own.error_message());
  }
  for (const Code code : {Code::PERMISSION_DENIED, Code::UNAUTHENTICATED, Code::UNIMPLEMENTED,
                          Code::FAILED_PRECONDITION, Code::INVALID_ARGUMENT, Code::NOT_FOUND}) {
    EXPECT_EQ(OfNoCoordinator({code, "no"}).error_code(), Code::UNAVAILABLE);
    EXPECT_THAT(OfNoCoordinator({code, "no"}).error_message(),
                HasSubstr(absl::StrCat("gRPC status ", int{code}, " (")));
  }
  const auto http = [](const char* status) {
    return OfNoCoordinator({Code::UNKNOWN, absl::StrCat("Received http2 header with status: ", status)});
  };
  EXPECT_EQ(http("413").error_code(), Code::UNAVAILABLE);
  EXPECT_THAT(http("413").error_message(),
              EndsWith("HTTP 413, a request is larger than it takes (nginx: client_max_body_size 0)"));
  EXPECT_THAT(http("401").error_message(), EndsWith("HTTP 401, it asks for a login"));
  EXPECT_THAT(http("404").error_message(), EndsWith("HTTP 404"));
}

}  // namespace
}  // namespace causeway::transport
