#include "transport/answers.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace causeway::transport {
namespace {

using testing::EndsWith;
using testing::HasSubstr;

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
