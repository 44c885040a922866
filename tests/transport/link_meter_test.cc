#include "transport/link_meter.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace causeway::transport
