#include "tests/bench/wanemu/emulated_network.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace causeway::bench {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// 10 Mbit/s: a frame of 1,250 bytes takes 1 ms.
constexpr LinkOptions kSlow = {.bits_per_s = 10e6, .delay_ns = 20 * kMs, .queue_s = 0.005};
constexpr int64_t kFrameIpBytes = 1250 - 38;

void SendFrame(EmulatedNetwork& network, int from, int to, int64_t now_ns, const std::string& text = "x") {
  network.Send(from, to, text, kFrameIpBytes, /*segments=*/1, now_ns);
}

std::string DeliveredAt(EmulatedNetwork& network, int64_t now_ns) {
  std::string text;
  network.Deliver(now_ns, [&](int to, std::span<const char> packet) {
    text += std::to_string(to) + ":" + std::string(packet.begin(), packet.end()) + " ";
  });
  return text;
}

TEST(EmulatedNetwork, APacketArrivesAfterItsTimeOnTheWireAndTheDelay) {
  EmulatedNetwork network(2, kSlow, /*shared_access=*/false);
  EXPECT_EQ(network.NextDeliveryNs(), kNever);
  SendFrame(network, 0, 1, 5 * kMs, "a");
  EXPECT_EQ(network.NextDeliveryNs(), 26 * kMs);
  EXPECT_EQ(DeliveredAt(network, 26 * kMs - 1), "");
  EXPECT_EQ(DeliveredAt(network, 26 * kMs), "1:a ");
  EXPECT_EQ(network.NextDeliveryNs(), kNever);
}

TEST(EmulatedNetwork, PacketsOfOneLinkLeaveOneAfterTheOtherAndThoseBeyondTheQueueAreDropped) {
  EmulatedNetwork network(2, kSlow, /*shared_access=*/false);
  for (int i = 0; i < 10; ++i) SendFrame(network, 0, 1, 0);
  EXPECT_EQ(network.counters(0, 1).packets, 6);  // one on the wire, 5 ms of others
  EXPECT_EQ(network.counters(0, 1).dropped, 4);
  EXPECT_EQ(network.counters(0, 1).ip_bytes, 6 * kFrameIpBytes);
  DeliveredAt(network, 25 * kMs);
  EXPECT_EQ(network.NextDeliveryNs(), 26 * kMs);
}

TEST(EmulatedNetwork, ASuperPacketTakesTheTimeOfItsSegments) {
  EmulatedNetwork network(2, kSlow, /*shared_access=*/false);
  network.Send(0, 1, std::string("x"), /*ip_bytes=*/52 + 3 * (1250 - 38 - 52), /*segments=*/3, 0);
  EXPECT_EQ(network.NextDeliveryNs(), 23 * kMs);
}

TEST(EmulatedNetwork, PairsDoNotShareARate) {
  EmulatedNetwork network(3, kSlow, /*shared_access=*/false);
  SendFrame(network, 0, 2, 0, "a");
  SendFrame(network, 1, 2, 0, "b");
  EXPECT_EQ(DeliveredAt(network, 21 * kMs), "2:a 2:b ");
}

TEST(EmulatedNetwork, SendersToOneReceiverShareItsAccessLink) {
  EmulatedNetwork network(3, kSlow, /*shared_access=*/true);
  SendFrame(network, 0, 2, 0, "a");
  SendFrame(network, 1, 2, 0, "b");
  EXPECT_EQ(DeliveredAt(network, 21 * kMs), "2:a ");
  EXPECT_EQ(DeliveredAt(network, 22 * kMs), "2:b ");
}

TEST(EmulatedNetwork, ReceiversShareTheAccessLinkOfTheirSender) {
  EmulatedNetwork network(3, kSlow, /*shared_access=*/true);
  SendFrame(network, 0, 1, 0, "a");
  SendFrame(network, 0, 2, 0, "b");
  SendFrame(network, 1, 0, 0, "c");  // the other direction is free
  EXPECT_EQ(DeliveredAt(network, 21 * kMs), "1:a 0:c ");
  EXPECT_EQ(DeliveredAt(network, 22 * kMs), "2:b ");
}

TEST(EmulatedNetwork, APacketToABusyReceiverHoldsUpNoOtherOneOfItsSender) {
  EmulatedNetwork network(4, kSlow, /*shared_access=*/true);
  for (int i = 0; i < 3; ++i) SendFrame(network, 1, 2, 0, "x");  // 2 is busy until 24 ms
  SendFrame(network, 0, 2, 0, "a");
  SendFrame(network, 0, 3, 0, "b");
  EXPECT_EQ(DeliveredAt(network, 22 * kMs), "2:a 3:b 2:x ");
  EXPECT_EQ(DeliveredAt(network, 24 * kMs), "2:x 2:x ");
}

TEST(EmulatedNetwork, AReceiversQueueIsAsLongAsASenders) {
  EmulatedNetwork network(4, kSlow, /*shared_access=*/true);
  for (int i = 0; i < 4; ++i) {
    for (int from : {0, 1, 3}) SendFrame(network, from, 2, i * kMs);
  }
  DeliveredAt(network, 60 * kMs);
  int64_t packets = 0, dropped = 0;
  for (int from : {0, 1, 3}) {
    packets += network.counters(from, 2).packets;
    dropped += network.counters(from, 2).dropped;
  }
  EXPECT_EQ(packets + dropped, 12);
  EXPECT_EQ(packets, 9);  // in 4 ms 4 leave, and 5 ms of others wait
}

TEST(EmulatedNetwork, APairMayDifferFromTheOthers) {
  EmulatedNetwork network(3, kSlow, /*shared_access=*/false);
  LinkOptions fast = kSlow;
  fast.bits_per_s = 100e6;
  fast.delay_ns = kMs;
  network.SetPair(0, 1, fast);
  SendFrame(network, 1, 0, 0);
  EXPECT_EQ(network.NextDeliveryNs(), kMs + kMs / 10);
}

TEST(EmulatedNetwork, WhatIsHandedOverTooLateIsToldOf) {
  EmulatedNetwork network(2, kSlow, /*shared_access=*/false);
  SendFrame(network, 0, 1, 0);
  SendFrame(network, 0, 1, 0);
  DeliveredAt(network, 24 * kMs);  // due at 21 and 22
  EXPECT_EQ(network.lateness().packets, 2);
  EXPECT_EQ(network.lateness().total_ns, 5 * kMs);
  EXPECT_EQ(network.lateness().worst_ns, 3 * kMs);
}

TEST(EmulatedNetwork, LossTakesItsShareOfPackets) {
  LinkOptions lossy = kSlow;
  lossy.loss = 0.25;
  EmulatedNetwork network(2, lossy, /*shared_access=*/false);
  constexpr int kPackets = 10'000;
  for (int i = 0; i < kPackets; ++i) SendFrame(network, 0, 1, i * kMs);
  EXPECT_EQ(network.counters(0, 1).packets, kPackets);
  EXPECT_NEAR(static_cast<double>(network.counters(0, 1).lost) / kPackets, 0.25, 0.03);  // 7 standard deviations
}

TEST(EmulatedNetwork, JitterNeverReordersALink) {
  LinkOptions jittery = kSlow;
  jittery.jitter_ns = 10 * kMs;
  EmulatedNetwork network(2, jittery, /*shared_access=*/false);
  std::string sent;
  for (int i = 0; i < 26; ++i) {
    SendFrame(network, 0, 1, i * kMs, std::string(1, static_cast<char>('a' + i)));
    sent += "1:" + std::string(1, static_cast<char>('a' + i)) + " ";
  }
  EXPECT_EQ(DeliveredAt(network, 100 * kMs), sent);
}

}  // namespace
}  // namespace causeway::bench
