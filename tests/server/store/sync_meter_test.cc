// How long the disk took: the slowest sync of the last minute, and one that hangs.
#include "server/store/sync_meter.h"

#include <gtest/gtest.h>

#include "tests/core/fake_clock.h"

namespace causeway::server {
namespace {

class SyncMeterTest : public testing::Test {
 protected:
  void Sync(int64_t ms) {
    const auto sync = [&] {
      clock_.Advance(ms);
      return absl::OkStatus();
    };
    EXPECT_TRUE(meter_.Time(sync).ok());
  }
  double Slowest() const { return meter_.figures().slowest_s; }

  core::FakeClock clock_{100'000};
  SyncMeter meter_{&clock_};
};

TEST_F(SyncMeterTest, CountsAndAddsUp) {
  EXPECT_EQ(meter_.figures().count, 0u);
  for (int64_t ms : {250, 500, 125}) Sync(ms);
  EXPECT_EQ(meter_.figures().count, 3u);
  EXPECT_EQ(meter_.figures().seconds, 0.875);
  EXPECT_EQ(Slowest(), 0.5);
}

TEST_F(SyncMeterTest, SlowestIsForgottenAfterAMinuteAtTheLatestAndHalfOfOneAtTheEarliest) {
  Sync(4'000);
  clock_.Advance(29'999);
  EXPECT_EQ(Slowest(), 4);
  Sync(1);
  EXPECT_EQ(Slowest(), 4);
  clock_.Advance(30'000);
  EXPECT_EQ(Slowest(), 0.001);
  clock_.Advance(30'000);
  EXPECT_EQ(Slowest(), 0);
}

TEST_F(SyncMeterTest, OneThatHangsIsSeenWhileItDoes) {
  const auto sync = [&] {
    clock_.Advance(7'000);
    EXPECT_EQ(Slowest(), 7);
    EXPECT_EQ(meter_.figures().count, 0u);
    return absl::UnavailableError("no disk");
  };
  EXPECT_EQ(meter_.Time(sync), absl::UnavailableError("no disk"));
  EXPECT_EQ(Slowest(), 7);
}

}  // namespace
}  // namespace causeway::server
