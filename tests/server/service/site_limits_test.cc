#include "server/service/site_limits.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "tests/core/fake_clock.h"

namespace causeway::server {
namespace {

using ::testing::HasSubstr;

class Limits : public testing::Test {
 protected:
  core::FakeClock clock_{1'000'000};
  SiteLimits limits_{{.control_messages_per_second = 10,
                      .control_messages_burst = 3,
                      .bulk_streams_per_second = 100,
                      .bulk_streams_burst = 5,
                      .bulk_streams_at_once = 2,
                      .max_sites = 2},
                     &clock_};
};

TEST_F(Limits, MessagesBeyondTheRateAreRefusedUntilTimeHasPassed) {
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(limits_.TakeControlMessage("a").ok());
  const absl::Status refused = limits_.TakeControlMessage("a");
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("site a sends more than 10 control messages a second"));
  clock_.Advance(99);
  EXPECT_FALSE(limits_.TakeControlMessage("a").ok());
  clock_.Advance(1);
  EXPECT_TRUE(limits_.TakeControlMessage("a").ok());
  EXPECT_FALSE(limits_.TakeControlMessage("a").ok());
  clock_.Advance(3'600'000);  // an hour saves up no more than the burst
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(limits_.TakeControlMessage("a").ok());
  EXPECT_FALSE(limits_.TakeControlMessage("a").ok());
}

TEST_F(Limits, SiteThatFloodsTakesNothingFromAnother) {
  for (int i = 0; i < 100; ++i) (void)limits_.TakeControlMessage("a");
  EXPECT_FALSE(limits_.TakeControlMessage("a").ok());
  EXPECT_TRUE(limits_.TakeControlMessage("b").ok());
}

TEST_F(Limits, BulkStreamsAtOnceAreCountedUntilTheyEnd) {
  auto first = limits_.OpenBulkStream("a");
  auto second = limits_.OpenBulkStream("a");
  ASSERT_TRUE(first.ok() && second.ok());
  const absl::Status third = limits_.OpenBulkStream("a").status();
  EXPECT_TRUE(absl::IsResourceExhausted(third));
  EXPECT_THAT(std::string(third.message()), HasSubstr("site a has 2 bulk streams open"));
  EXPECT_TRUE(limits_.OpenBulkStream("b").ok());
  first->reset();
  EXPECT_TRUE(limits_.OpenBulkStream("a").ok());
}

TEST_F(Limits, BulkStreamsBeyondTheRateAreRefused) {
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(limits_.OpenBulkStream("a").ok());  // and closed at once
  EXPECT_TRUE(absl::IsResourceExhausted(limits_.OpenBulkStream("a").status()));
  clock_.Advance(10);
  EXPECT_TRUE(limits_.OpenBulkStream("a").ok());
}

TEST_F(Limits, NamesAreForgottenWhenTheirBucketsAreFullAgainAndNoneIsInUse) {
  EXPECT_TRUE(limits_.TakeControlMessage("a").ok());
  auto stream = limits_.OpenBulkStream("b");
  EXPECT_THAT(std::string(limits_.TakeControlMessage("c").message()), HasSubstr("more than 2 names"));
  clock_.Advance(60'000);
  EXPECT_TRUE(limits_.TakeControlMessage("c").ok());
  EXPECT_FALSE(limits_.TakeControlMessage("d").ok()) << "b has a stream, c has just spoken";
  stream->reset();
  EXPECT_TRUE(limits_.TakeControlMessage("d").ok());
}

}  // namespace
}  // namespace causeway::server
