#include "worker/data/batches_ahead.h"

#include <gtest/gtest.h>

#include <atomic>

#include "core/check.h"

namespace causeway::worker {
namespace {

// Batch t is four rows of one token, t.
class BatchesAheadTest : public ::testing::Test {
 protected:
  absl::StatusOr<Batch> Make(core::Step t) {
    ++made_;
    if (t == 9) return absl::InvalidArgumentError("no rows");
    const auto token = static_cast<int32_t>(t + offset_);
    return Batch{std::vector<int32_t>(4, token), std::vector<int32_t>(4, token)};
  }
  int32_t TokenOf(core::Step t) { return ahead_.Take(t)->front().batch.tokens.front(); }

  std::atomic<int> made_ = 0, offset_ = 0;
  BatchesAhead ahead_{[this](core::Step t) { return Make(t); }, 2, /*sorted=*/true};
};

TEST_F(BatchesAheadTest, AreThoseOfTheStepInMicroBatchesSortedByToken) {
  const auto parts = ahead_.Take(3);
  ASSERT_TRUE(parts.ok());
  ASSERT_EQ(parts->size(), 2u);
  EXPECT_EQ((*parts)[1].batch.tokens, std::vector<int32_t>(2, 3));
  EXPECT_EQ((*parts)[1].shares.order, (std::vector<int32_t>{0, 1}));
}

TEST_F(BatchesAheadTest, EachIsMadeOnceWhereStepsFollowEachOther) {
  for (core::Step t = 1; t <= 5; ++t) EXPECT_EQ(TokenOf(t), t);
  ahead_.Forget();
  EXPECT_EQ(made_, 6);  // and the one after the last
}

TEST_F(BatchesAheadTest, AnotherStepThanTheNextIsMadeThen) {
  EXPECT_EQ(TokenOf(1), 1);
  EXPECT_EQ(TokenOf(7), 7);
  EXPECT_EQ(TokenOf(2), 2);
}

TEST_F(BatchesAheadTest, OneThatWasMadeBeforeForgetIsMadeAgain) {
  EXPECT_EQ(TokenOf(1), 1);
  ahead_.Forget();
  offset_ = 100;
  EXPECT_EQ(TokenOf(2), 102);
}

TEST_F(BatchesAheadTest, AnErrorIsTheStepsOwn) {
  EXPECT_EQ(TokenOf(8), 8);
  EXPECT_EQ(ahead_.Take(9).status().message(), "no rows");
  EXPECT_EQ(TokenOf(10), 10);
}

}  // namespace
}  // namespace causeway::worker
