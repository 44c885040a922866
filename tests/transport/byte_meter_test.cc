#include <gtest/gtest.h>

#include "transport/link_meter.h"

namespace causeway::transport {
namespace {

TEST(ByteMeter, CountsFromTheFirstByte) {
  ByteMeter meter;
  meter.Add(5);
  meter.Add(7);
  EXPECT_EQ(meter.total(), 12);
  EXPECT_EQ(meter.bytes_per_s(), 0);
}

TEST(ByteMeter, RateApproachesASteadyStreamAndFadesAfterIt) {
  ByteMeter meter;
  int64_t now_ms = 1000;
  meter.Sample(now_ms);
  for (int second = 0; second < 30; ++second) {
    meter.Add(500);
    meter.Sample(now_ms += 500);
  }
  EXPECT_NEAR(meter.bytes_per_s(), 1000, 1);
  double last = meter.bytes_per_s();
  for (int second = 0; second < 5; ++second) {
    meter.Sample(now_ms += 1000);
    EXPECT_LT(meter.bytes_per_s(), last);
    last = meter.bytes_per_s();
  }
  EXPECT_LT(last, 200);
  for (int second = 0; second < 30; ++second) meter.Sample(now_ms += 1000);
  EXPECT_EQ(meter.bytes_per_s(), 0);
}

TEST(ByteMeter, BurstShowsAtOnce) {
  ByteMeter meter;
  meter.Sample(1);
  meter.Add(1'000'000);
  meter.Sample(1001);
  EXPECT_GT(meter.bytes_per_s(), 250'000);
}

TEST(ByteMeter, TwoSamplesInOneInstantDoNotDivideByZero) {
  ByteMeter meter;
  meter.Sample(1);
  meter.Add(10);
  meter.Sample(1);
  EXPECT_EQ(meter.bytes_per_s(), 0);
}

}  // namespace
}  // namespace causeway::transport
