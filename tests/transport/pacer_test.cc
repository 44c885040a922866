#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "transport/link_meter.h"

namespace causeway::transport {
namespace {

TEST(Pacer, WithoutARateEverythingGoesAtOnce) {
  Pacer pacer(0);
  EXPECT_EQ(pacer.Reserve(1 << 30, 5), 5);
  EXPECT_EQ(pacer.Reserve(1 << 30, 6), 6);
}

TEST(Pacer, BytesWaitForThoseBeforeThem) {
  Pacer pacer(1e6);  // a byte a microsecond
  EXPECT_EQ(pacer.Reserve(1000, 0), 0);
  EXPECT_EQ(pacer.Reserve(500, 100), 1000);
  EXPECT_EQ(pacer.Reserve(1, 100), 1500);
}

TEST(Pacer, TimeWithoutTrafficIsNotSavedUp) {
  Pacer pacer(1e6);
  pacer.Reserve(1000, 0);
  EXPECT_EQ(pacer.Reserve(1000, 9000), 9000);
  EXPECT_EQ(pacer.Reserve(1000, 9000), 10000);
}

struct Grant {
  int64_t at_us;
  int64_t bytes;
};

// Transfers that ask at random moments for random sizes, in the order in which their bytes may go.
std::vector<Grant> Grants(double bytes_per_s, int64_t most_bytes, int64_t most_pause_us) {
  std::mt19937 random(7);
  std::uniform_int_distribution<int64_t> bytes(1, most_bytes), pause_us(0, most_pause_us);
  Pacer pacer(bytes_per_s);
  std::vector<Grant> grants;
  int64_t now_us = 1'700'000'000'000'000;
  for (int i = 0; i < 1000; ++i) {
    now_us += pause_us(random);
    const int64_t size = bytes(random);
    grants.push_back({pacer.Reserve(size, now_us), size});
    EXPECT_GE(grants.back().at_us, now_us);
  }
  return grants;
}

TEST(Pacer, AtEveryInstantAtMostTheRatesBytesAndOneReservationHaveGone) {
  for (double bytes_per_s : {125.0, 3e6, 6e6, 1.25e9}) {
    for (int64_t most_bytes : {3, 1 << 20}) {
      for (int64_t most_pause_us : {0, 1000, 300'000}) {
        const std::vector<Grant> grants = Grants(bytes_per_s, most_bytes, most_pause_us);
        for (size_t from = 0; from < grants.size(); from += 37) {
          int64_t gone = 0;
          for (size_t i = from; i < grants.size(); ++i) {
            gone += grants[i].bytes;
            const double elapsed_s =
                1e-6 * static_cast<double>(grants[i].at_us + 1 - grants[from].at_us);  // a tick more
            ASSERT_LE(static_cast<double>(gone), bytes_per_s * elapsed_s + static_cast<double>(most_bytes))
                << bytes_per_s << " B/s, grants " << from << " to " << i;
          }
        }
      }
    }
  }
}

TEST(Pacer, TransfersThatAlwaysWaitGetTheWholeRate) {
  constexpr double kBytesPerS = 6e6;
  const std::vector<Grant> grants = Grants(kBytesPerS, 1 << 20, /*most_pause_us=*/0);
  int64_t before_last = 0;
  for (size_t i = 0; i + 1 < grants.size(); ++i) before_last += grants[i].bytes;
  const double expected_us = 1e6 * static_cast<double>(before_last) / kBytesPerS;
  EXPECT_NEAR(static_cast<double>(grants.back().at_us - grants.front().at_us), expected_us, 2);
}

TEST(Pacer, ARateOfNextToNothingHoldsForEver) {
  Pacer pacer(1e-12);
  for (int i = 0; i < 100; ++i) pacer.Reserve(1 << 20, 1000);
  EXPECT_GT(pacer.Reserve(1, 1000), int64_t{1} << 51);
}

}  // namespace
}  // namespace causeway::transport
