
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "transport/link_meter.h"

namespace causeway::transport {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr KernelBuffers kLinuxDefaults = {.write = {4096, 16384, 4194304}, .read = {4096, 131072, 6291456}};

// With as many connections as the link chooses.
core::LinkProgress Link(double up_bytes_per_s, double down_bytes_per_s, double round_trip_s) {
  LinkMeter meter;
  meter.RoundTrip(round_trip_s);
  meter.Moved(LinkMeter::Direction::kUp, static_cast<int64_t>(up_bytes_per_s), 1);
  meter.Moved(LinkMeter::Direction::kDown, static_cast<int64_t>(down_bytes_per_s), 1);
  return meter.progress();
}

TEST(KernelBuffers, TheDefaultsAreEnoughForWhatSixteenConnectionsCarry) {
  EXPECT_EQ(BufferAdvice(Link(1.25e6, 1.25e6, 0.2), kLinuxDefaults), "");   // 10 Mbit/s
  EXPECT_EQ(BufferAdvice(Link(118e6, 118e6, 0.1), kLinuxDefaults), "");     // 1 Gbit/s
  EXPECT_EQ(BufferAdvice(Link(350e6, 350e6, 0.1), kLinuxDefaults), "");     // nearly 16 times 2.8 MB, with some room
  EXPECT_EQ(BufferAdvice(Link(1.2e9, 1.2e9, 0.0002), kLinuxDefaults), "");  // 10 Gbit/s, next door
}

TEST(KernelBuffers, ALinkThatSixteenConnectionsCannotFillNamesTheSysctlAndTheSize) {
  // 1.25 × 4 Gbit/s × 200 ms in 16 connections: 7.8 MB in flight each, 11.7 MB of write buffer, 15.6 of read buffer.
  EXPECT_THAT(BufferAdvice(Link(500e6, 1e6, 0.2), kLinuxDefaults),
              AllOf(HasSubstr("4000 Mbit/s over 200 ms"), HasSubstr("net.ipv4.tcp_wmem allows 4194304"),
                    HasSubstr("sysctl -w net.ipv4.tcp_wmem=\"4096 16384 12582912\""),
                    HasSubstr("net.ipv4.tcp_rmem at the coordinator"), Not(HasSubstr("sysctl -w net.ipv4.tcp_rmem"))));
  EXPECT_THAT(BufferAdvice(Link(1e6, 500e6, 0.2), kLinuxDefaults),
              HasSubstr("sysctl -w net.ipv4.tcp_rmem=\"4096 131072 15728640\""));
}

TEST(KernelBuffers, MaximaBelowWhatAConnectionIsCountedOnForMatterWhereTheLinkNeedsThem) {
  KernelBuffers small = kLinuxDefaults;
  small.write.most = 1 << 20;
  EXPECT_THAT(BufferAdvice(Link(118e6, 118e6, 0.1), small), HasSubstr("sysctl -w net.ipv4.tcp_wmem"));
  EXPECT_EQ(BufferAdvice(Link(1.25e6, 118e6, 0.001), small), "");
}

TEST(KernelBuffers, NothingIsSaidOfWhatIsNotKnown) {
  EXPECT_EQ(BufferAdvice(Link(500e6, 500e6, 0.2), {}), "");
  EXPECT_EQ(BufferAdvice({}, kLinuxDefaults), "");
}

TEST(KernelBuffers, ReadsTheThreeNumbersOfTheKernel) {
  const BufferSizes sizes = ParseBufferSizes("4096\t16384\t4194304\n");
  EXPECT_EQ(sizes.least, 4096);
  EXPECT_EQ(sizes.initial, 16384);
  EXPECT_EQ(sizes.most, 4194304);
  EXPECT_EQ(ParseBufferSizes("").most, 0);
  EXPECT_EQ(ParseBufferSizes("4096 many").most, 0);
}

}  // namespace
}  // namespace causeway::transport
