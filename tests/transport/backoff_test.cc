#include "transport/backoff.h"

#include <gtest/gtest.h>

#include <limits>

#include "core/limits.h"
#include "tests/transport/least_wait.h"

namespace causeway::transport {
namespace {

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

}  // namespace
}  // namespace causeway::transport
