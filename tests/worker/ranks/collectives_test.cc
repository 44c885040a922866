#include <chrono>

#include "core/clock.h"
#include "tests/worker/ranks/collectives_suite.h"
#include "tests/worker/ranks/gloo_ranks.h"

namespace causeway::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

INSTANTIATE_TEST_SUITE_P(Threads, CollectivesSuite,
                         ::testing::Combine(::testing::Values(Implementation{"threads", OverThreads}),
                                            ::testing::Values(1, 2, 3, 4)),
                         SuiteName);
INSTANTIATE_TEST_SUITE_P(Gloo, CollectivesSuite,
                         ::testing::Combine(::testing::Values(Implementation{"gloo", OverGloo}),
                                            ::testing::Values(2, 3, 4)),
                         SuiteName);

// ---- Promises of the ordered ones, beyond the suite ----

class OrderedTest : public ::testing::TestWithParam<Implementation> {};

std::string ParamName(const ::testing::TestParamInfo<Implementation>& info) { return info.param.name; }

TEST_P(OrderedTest, SumsAreInTheOrderOfTheRanksToTheLastBit) {
  std::vector<RankUnderTest> ranks = GetParam().make(3);
  const std::vector<float> each = {1e8f, -1e8f, 1.0f};  // (1e8 − 1e8) + 1 = 1; another order gives 0
  const std::vector<absl::Status> statuses = OnRanks(3, [&](int rank) -> absl::Status {
    std::vector<float> values(10000, each[rank]);
    Collectives& collectives = *ranks[rank].collectives;
    RETURN_IF_ERROR(collectives.Await(collectives.AllReduce(values), kLong));
    return values == std::vector<float>(10000, 1.0f) ? absl::OkStatus() : absl::InternalError("another order");
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

TEST_P(OrderedTest, AnAllReduceSendsTwiceTheOtherRanksPartsOfIt) {
  std::vector<RankUnderTest> ranks = GetParam().make(4);
  OnRanks(4, [&](int rank) {
    std::vector<float> values(4000);
    return ranks[rank].collectives->Await(ranks[rank].collectives->AllReduce(values), kLong);
  });
  for (const RankUnderTest& rank : ranks) EXPECT_EQ(rank.collectives->sent_bytes(), 2 * 3 * 4000 / 4 * 4);
}

TEST_P(OrderedTest, AnotherOperationIsFoundAndBothAreNamed) {
  std::vector<RankUnderTest> ranks = GetParam().make(2);
  const std::vector<absl::Status> statuses = OnRanks(2, [&](int rank) {
    Collectives& collectives = *ranks[rank].collectives;
    std::vector<float> values(rank == 0 ? 100 : 200);
    return collectives.Await(collectives.AllReduce(values), kLong);
  });
  for (const absl::Status& status : statuses) {
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(status.message(), HasSubstr("all-reduce 1 of 400 bytes"));
    EXPECT_THAT(status.message(), HasSubstr("all-reduce 1 of 800 bytes"));
  }
}

TEST_P(OrderedTest, AnAbortReachesTheOthersWithItsReason) {
  std::vector<RankUnderTest> ranks = GetParam().make(3);
  const std::vector<absl::Status> statuses = OnRanks(3, [&](int rank) {
    Collectives& collectives = *ranks[rank].collectives;
    if (rank == 1) collectives.Abort("its disk is full");
    return collectives.Await(collectives.Barrier(), kLong);
  });
  EXPECT_EQ(statuses[1].message(), "its disk is full");
  for (const int rank : {0, 2}) {
    EXPECT_EQ(statuses[rank].code(), absl::StatusCode::kAborted) << statuses[rank];
    EXPECT_THAT(std::string(statuses[rank].message()), MatchesRegex("rank 1 of 3 \\(.*\\): its disk is full"));
  }
}

TEST_P(OrderedTest, ARankThatDoesNotComeEndsTheOthersWithinTheirDeadline) {
  std::vector<RankUnderTest> ranks = GetParam().make(2);
  const core::Clock::TimePoint begin = core::SystemClock().Now();
  Collectives& collectives = *ranks[0].collectives;
  const absl::Status status = collectives.Await(collectives.Barrier(), std::chrono::milliseconds(200));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()),
              MatchesRegex("rank 1 of 2 \\(.*\\) has said nothing for 0.2 s: barrier 1 is not done"));
  EXPECT_LT(core::SystemClock().SecondsSince(begin), 30);  // and not for ever
  EXPECT_EQ(collectives.Await(collectives.Barrier(), kLong), status);
}

TEST_P(OrderedTest, ARankThatEndsIsNamedAtOnce) {
  std::vector<RankUnderTest> ranks = GetParam().make(2);
  const std::vector<absl::Status> statuses = OnRanks(2, [&](int rank) -> absl::Status {
    if (rank == 1) {
      ranks[1].collectives = nullptr;
      return absl::OkStatus();
    }
    std::vector<float> values(100);
    return ranks[0].collectives->Await(ranks[0].collectives->AllReduce(values), kLong);
  });
  EXPECT_EQ(statuses[0].code(), absl::StatusCode::kUnavailable) << statuses[0];
  EXPECT_THAT(std::string(statuses[0].message()), MatchesRegex("rank 1 of 2 \\(.*\\) has ended"));
}

INSTANTIATE_TEST_SUITE_P(All, OrderedTest,
                         ::testing::Values(Implementation{"threads", OverThreads}, Implementation{"gloo", OverGloo}),
                         ParamName);

// ---- The test bed ----

class ThreadRanksTest : public ::testing::Test {
 protected:
  ThreadRanksTest() {
    for (int rank = 0; rank < 3; ++rank) {
      collectives_.push_back(std::make_unique<OrderedCollectives>(ranks_.wire(rank)));
    }
  }

  ThreadRanks ranks_{3};
  std::vector<std::unique_ptr<Collectives>> collectives_;
};

TEST_F(ThreadRanksTest, OneThatEndsIsNamedByTheOthers) {
  ranks_.End(2);
  const std::vector<absl::Status> statuses =
      OnRanks(2, [&](int rank) { return collectives_[rank]->Await(collectives_[rank]->Barrier(), kLong); });
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(status.message(), HasSubstr("rank 2 of 3 (thread) has ended")) << status;
  }
}

TEST_F(ThreadRanksTest, OneThatHangsIsNamedAfterTheTimeout) {
  ranks_.Hang(1);
  const std::vector<absl::Status> statuses = OnRanks(3, [&](int rank) {
    return collectives_[rank]->Await(collectives_[rank]->Barrier(),
                                     rank == 0 ? Collectives::Timeout(std::chrono::milliseconds(100)) : kLong);
  });
  EXPECT_EQ(statuses[0].message(), "rank 1 of 3 (thread) has said nothing for 0.1 s: barrier 1 is not done");
  EXPECT_THAT(statuses[2].message(), HasSubstr("rank 1 of 3 (thread) has said nothing"));
}

}  // namespace
}  // namespace causeway::worker
