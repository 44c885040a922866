#include <gtest/gtest.h>

#include "transport/messages.h"

namespace causeway::transport {
namespace {

core::Membership MembershipForTest() {
  core::Membership membership{.started = true, .finished = false, .paused = true, .stopped = false, .seeder = "eu"};
  membership.sites["eu"] = {
      .session = "s1", .stay = 4, .state = core::SiteState::kTraining, .reason = "in", .first_versions = {1, 2}};
  membership.sites["us"] = {
      .session = "s2", .stay = 1, .state = core::SiteState::kGone, .ended = core::Ended::kExpired, .reason = "left"};
  return membership;
}

TEST(ShardMessages, AMembershipComesBackAsItWas) {
  const core::Membership sent = MembershipForTest();
  v1::MembershipUpdate message;
  ToProto(sent, &message);
  const auto came = FromProto(message);
  ASSERT_TRUE(came.ok()) << came.status();
  EXPECT_TRUE(came->started);
  EXPECT_FALSE(came->finished);
  EXPECT_TRUE(came->paused);
  EXPECT_FALSE(came->stopped);
  EXPECT_EQ(came->seeder, "eu");
  ASSERT_EQ(came->sites.size(), 2u);
  for (const auto& [site, member] : sent.sites) {
    EXPECT_EQ(came->sites.at(site).session, member.session);
    EXPECT_EQ(came->sites.at(site).stay, member.stay);
    EXPECT_EQ(came->sites.at(site).state, member.state);
    EXPECT_EQ(came->sites.at(site).ended, member.ended);
    EXPECT_EQ(came->sites.at(site).reason, member.reason);
    EXPECT_EQ(came->sites.at(site).first_versions, member.first_versions);
  }
}

TEST(ShardMessages, AStateThatIsNotKnownIsRefusedWithItsSite) {
  v1::MembershipUpdate message;
  ToProto(MembershipForTest(), &message);
  message.mutable_members(1)->set_state(static_cast<uint32_t>(core::SiteState::kGone) + 1);
  const auto came = FromProto(message);
  EXPECT_TRUE(absl::IsInvalidArgument(came.status()));
  EXPECT_EQ(came.status().message(), "membership: site us: state 4 and end 2 are not known to this version");
}

}  // namespace
}  // namespace causeway::transport
