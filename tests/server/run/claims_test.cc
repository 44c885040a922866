#include "server/run/claims.h"

#include <gtest/gtest.h>

#include <initializer_list>

namespace causeway::server {
namespace {

v1::Join JoinWith(const std::string& lineage, uint64_t epoch, std::initializer_list<core::Version> versions) {
  v1::Join join;
  join.mutable_context()->set_lineage(lineage);
  join.mutable_context()->set_epoch(epoch);
  for (const core::Version version : versions) join.add_versions(version);
  return join;
}

// Epoch 4 began at versions 20 and 21, after a loss of power.
TEST(Claims, SiteOfBeforeALossOfPowerHoldsNoneOfTheVersionsThatWereMadeAnew) {
  JournalIdentity journal{.epoch = 6, .lineage = "now"};
  journal.floors = {{.epoch = 4, .versions = {{0, 20}, {1, 21}}}};
  const Claims claims(journal, /*life=*/1, {0, 1});
  EXPECT_TRUE(claims.HoldsLost(JoinWith("now", 3, {22, 21})));
  EXPECT_FALSE(claims.HoldsLost(JoinWith("now", 3, {20, 21}))) << "both are of before";
  EXPECT_FALSE(claims.HoldsLost(JoinWith("now", 4, {22, 21}))) << "it was told so since";
  EXPECT_FALSE(claims.HoldsLost(JoinWith("before", 3, {22, 21}))) << "it takes the anchors anew in any case";
  EXPECT_FALSE(claims.HoldsLost(JoinWith("now", 3, {}))) << "a fresh site";
}

TEST(Claims, AdmissionsToVersionsThatWereMadeAnewAreNoLostHistory) {
  JournalIdentity journal{.epoch = 6, .lineage = "now", .secret = "s"};
  journal.floors = {{.epoch = 4, .versions = {{0, 20}}}};
  const Claims claims(journal, /*life=*/1, {0, 1});
  const auto doubt_of = [&](uint64_t epoch) {
    v1::Join join = JoinWith("now", epoch, {22});
    join.mutable_context()->set_site("a");
    join.add_admitted(21);
    join.add_admission_proofs(claims.ProofOfAdmission("a", 0, 21));
    return claims.Check(join, {.versions = {30}, .admitted = {19}}, /*trains=*/true);
  };
  EXPECT_FALSE(doubt_of(3));
  ASSERT_TRUE(doubt_of(5));
  EXPECT_EQ(doubt_of(5)->doubt, Doubt::kHistoryLost);
}

}  // namespace
}  // namespace causeway::server
