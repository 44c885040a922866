#include "server/calls/site_limits.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "tests/core/fake_clock.h"

namespace causeway::server {
namespace {

using ::testing::HasSubstr;

class Limits : public testing::Test {
 protected:
  absl::Status Take(const std::string& site, int64_t bytes = 20, bool has_manifest = false) {
    return limits_.TakeControlMessage(site, bytes, has_manifest);
  }

  core::FakeClock clock_{1'000'000};
  SiteLimits limits_{{.control_messages_per_second = 10,
                      .control_messages_burst = 3,
                      .control_message_bytes = 1'000,
                      .bulk_streams_per_second = 100,
                      .bulk_streams_burst = 5,
                      .bulk_streams_at_once = 2,
                      .max_sites = 2},
                     &clock_};
};

TEST_F(Limits, MessagesBeyondTheRateAreRefusedUntilTimeHasPassed) {
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Take("a").ok());
  const absl::Status refused = Take("a");
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("site a sends more than 10 control messages a second"));
  clock_.Advance(99);
  EXPECT_FALSE(Take("a").ok());
  clock_.Advance(1);
  EXPECT_TRUE(Take("a").ok());
  EXPECT_FALSE(Take("a").ok());
  clock_.Advance(3'600'000);  // an hour saves up no more than the burst
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Take("a").ok());
  EXPECT_FALSE(Take("a").ok());
}

TEST_F(Limits, SiteThatFloodsTakesNothingFromAnother) {
  for (int i = 0; i < 100; ++i) (void)Take("a");
  EXPECT_FALSE(Take("a").ok());
  EXPECT_TRUE(Take("b").ok());
}

TEST_F(Limits, MessageThatIsTooLongIsRefusedUnlessItHasAManifest) {
  EXPECT_TRUE(Take("a", 1'000).ok());
  const absl::Status refused = Take("a", 1'001);
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("of 1001 bytes: expected at most 1000"));
  EXPECT_TRUE(Take("a", core::kMaxControlMessageBytes, /*has_manifest=*/true).ok());
}

TEST_F(Limits, BytesBeyondTheRateAreRefusedUntilTimeHasPassed) {
  SiteLimits limits({.control_messages_burst = 1e6, .control_message_bytes = 1'000}, &clock_);
  for (int i = 0; i < 16; ++i) ASSERT_TRUE(limits.TakeControlMessage("a", 1'000, false).ok());
  EXPECT_THAT(std::string(limits.TakeControlMessage("a", 1'000, false).message()),
              HasSubstr("more than 4000 bytes of control messages a second"));
  EXPECT_TRUE(limits.TakeControlMessage("b", 1'000, false).ok());
  clock_.Advance(250);
  EXPECT_TRUE(limits.TakeControlMessage("a", 1'000, false).ok());
}

TEST_F(Limits, BytesOfManifestsMayBeOwedAndNoneIsTakenUntilTheyArePaid) {
  const int64_t large = core::kMaxControlMessageBytes;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(limits_.TakeLarge("a", large).ok());
  ASSERT_TRUE(limits_.TakeLarge("a", large - 1).ok());
  EXPECT_TRUE(limits_.CheckOwesNothing("a").ok());
  ASSERT_TRUE(limits_.TakeLarge("a", large).ok()) << "one byte was left";
  for (const absl::Status& refused : {limits_.TakeLarge("a", large), limits_.CheckOwesNothing("a")}) {
    EXPECT_TRUE(absl::IsResourceExhausted(refused));
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr("site a sends more than 8388608 bytes of manifests a second"));
  }
  EXPECT_TRUE(limits_.CheckOwesNothing("b").ok());
  EXPECT_TRUE(limits_.TakeLarge("b", large).ok());
  clock_.Advance(999);
  EXPECT_FALSE(limits_.TakeLarge("a", large).ok());
  clock_.Advance(2);
  EXPECT_TRUE(limits_.CheckOwesNothing("a").ok());
  EXPECT_TRUE(limits_.TakeLarge("a", large).ok());
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
  EXPECT_TRUE(Take("a").ok());
  auto stream = limits_.OpenBulkStream("b");
  EXPECT_THAT(std::string(Take("c").message()), HasSubstr("more than 2 names"));
  clock_.Advance(60'000);
  EXPECT_TRUE(Take("c").ok());
  EXPECT_FALSE(Take("d").ok()) << "b has a stream, c has just spoken";
  stream->reset();
  EXPECT_TRUE(Take("d").ok());
}

}  // namespace
}  // namespace causeway::server
