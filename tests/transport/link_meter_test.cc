#include "transport/link_meter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace causeway::transport {
namespace {

using Direction = LinkMeter::Direction;

TEST(LinkMeter, TakesTheDefaultWhileRateOrRoundTripIsUnknown) {
  LinkMeter meter;
  EXPECT_EQ(meter.channels(), kDefaultChannels);
  meter.Moved(Direction::kUp, 100'000'000, 1);
  EXPECT_EQ(meter.channels(), kDefaultChannels);
}

TEST(LinkMeter, ASlowOrNearLinkTakesOneConnection) {
  LinkMeter meter;
  meter.RoundTrip(0.05);
  meter.Moved(Direction::kUp, 2'000'000, 1.6);  // 10 Mbit/s
  EXPECT_EQ(meter.channels(), 1);
  LinkMeter near;
  near.RoundTrip(0.0002);
  near.Moved(Direction::kDown, 1'500'000, 1);
  EXPECT_EQ(near.channels(), 1);
}

TEST(LinkMeter, TakesUpToFourConnectionsThatHaveAMegabyteASecondEach) {
  for (const auto& [bytes_per_s, channels] : {std::pair(2'500'000, 2), {4'000'000, 4}, {1'000'000'000, 4}}) {
    LinkMeter meter;
    meter.RoundTrip(0.0002);
    meter.Moved(Direction::kDown, bytes_per_s, 1);
    EXPECT_EQ(meter.channels(), channels) << bytes_per_s;
  }
}

TEST(LinkMeter, ConnectionsThatAreTheLimitGrowInNumberUntilTheLinkIs) {
  // 1 Gbit/s and 100 ms hold 12.5 MB; each connection moves 2.8 MB in a round trip.
  LinkMeter meter;
  meter.RoundTrip(0.1);
  for (int transfer = 0; transfer < 50; ++transfer) {
    const double rate = std::min(125e6, meter.channels() * 2.8e6 / 0.1);
    meter.Moved(Direction::kDown, static_cast<int64_t>(rate), 1);
  }
  EXPECT_GE(meter.channels() * 2.8e6 / 0.1, 125e6);
  EXPECT_LE(meter.channels(), 6);
}

TEST(LinkMeter, NeverTakesMoreThanTheMost) {
  LinkMeter meter;
  meter.RoundTrip(0.3);
  meter.Moved(Direction::kUp, 10'000'000'000, 1);
  EXPECT_EQ(meter.channels(), kMaxChannels);
}

TEST(LinkMeter, FewerConnectionsAreTakenOnlyWhenTheyHaveSufficedForAWhile) {
  LinkMeter meter;
  meter.RoundTrip(0.1);
  meter.Moved(Direction::kUp, 200'000'000, 1);
  const int fast = meter.channels();
  for (int i = 0; i < 3; ++i) meter.Moved(Direction::kUp, 1'000'000, 1);
  EXPECT_EQ(meter.channels(), fast);
  for (int i = 0; i < 20; ++i) meter.Moved(Direction::kUp, 1'000'000, 1);
  EXPECT_EQ(meter.channels(), 1);
}

TEST(LinkMeter, AHeldRateTakesNoMoreConnectionsThanItFills) {
  LinkMeter meter;
  meter.RoundTrip(0.1);
  meter.Moved(Direction::kUp, 200'000'000, 1);
  ASSERT_GT(meter.channels(), 4);
  EXPECT_EQ(meter.ChannelsWithin(0), meter.channels()) << "no rate is held";
  EXPECT_EQ(meter.ChannelsWithin(1e9), meter.channels()) << "the held rate is beyond the link's";
  EXPECT_EQ(meter.ChannelsWithin(1e6), 1);
  EXPECT_EQ(meter.ChannelsWithin(56e6), 3) << "2.8 MB each in a round trip, and a quarter more";
}

TEST(LinkMeter, AQueueOnTheWayDoesNotCountAsDistance) {
  LinkMeter meter;
  for (double trip : {0.25, 0.05, 0.3}) meter.RoundTrip(trip);
  EXPECT_EQ(meter.progress().round_trip_s, 0.05);
}

TEST(LinkMeter, OneTransferThatABufferTookDoesNotHideASlowLink) {
  LinkMeter meter;
  meter.Moved(Direction::kUp, 1'000'000, 0.01);
  for (int i = 0; i < 2; ++i) meter.Moved(Direction::kUp, 1'000'000, 1);
  EXPECT_LT(meter.progress().up_bytes_per_s, 2e6);
}

TEST(LinkMeter, TransfersOfAFewBytesSayNothingButWhatTheLinkHasAtLeast) {
  LinkMeter meter;
  meter.Moved(Direction::kUp, 1000, 0.1);
  EXPECT_EQ(meter.progress().up_bytes_per_s, 0);
  EXPECT_EQ(meter.progress().up_least_bytes_per_s, 10'000);
  meter.Moved(Direction::kUp, 1'000'000, 1);
  EXPECT_EQ(meter.progress().up_bytes_per_s, 1e6);
  meter.MovedAtLeast(Direction::kDown, 1'000'000, 1);
  EXPECT_EQ(meter.progress().down_bytes_per_s, 0);
  EXPECT_EQ(meter.progress().down_least_bytes_per_s, 1e6);
  EXPECT_EQ(meter.progress().up_least_bytes_per_s, 10'000);
}

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
