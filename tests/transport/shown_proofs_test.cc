#include "transport/shown_proofs.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace causeway::transport {
namespace {

const std::string kBytes("\0\xff,:", 4);  // any

v1::Join JoinWith(const ShownProofs& proofs, core::Version version, core::Version admitted) {
  v1::Join join;
  join.add_versions(3);
  join.add_versions(version);
  join.add_admitted(-1);
  join.add_admitted(admitted);
  proofs.AddTo(&join);
  return join;
}

TEST(ShownProofs, AreThoseOfTheClaimsAndEmptyWhereThereIsNone) {
  ShownProofs proofs;
  proofs.HasEpoch("e");
  proofs.HasVersion(1, 7, kBytes);
  proofs.HasAdmitted(1, 6, "a");
  const v1::Join join = JoinWith(proofs, 7, 6);
  EXPECT_EQ(join.epoch_proof(), "e");
  EXPECT_EQ(join.version_proofs(0), "");
  EXPECT_EQ(join.version_proofs(1), kBytes);
  EXPECT_EQ(join.admission_proofs(0), "");
  EXPECT_EQ(join.admission_proofs(1), "a");
  EXPECT_EQ(JoinWith(proofs, 8, 7).version_proofs(1), "") << "of another version";
}

TEST(ShownProofs, TheNewestOfAFragmentAreKept) {
  ShownProofs proofs;
  for (core::Version version = 0; version < 10; ++version) proofs.HasVersion(1, version, absl::StrCat(version));
  EXPECT_EQ(JoinWith(proofs, 9, 0).version_proofs(1), "9");
  EXPECT_EQ(JoinWith(proofs, 6, 0).version_proofs(1), "6");
  EXPECT_EQ(JoinWith(proofs, 5, 0).version_proofs(1), "");
}

TEST(ShownProofs, OfACoordinatorThatGivesNoneLeaveThoseBefore) {
  ShownProofs proofs;
  proofs.HasVersion(1, 7, "p");
  proofs.HasVersion(1, 7, "");
  EXPECT_EQ(JoinWith(proofs, 7, 0).version_proofs(1), "p");
}

TEST(ShownProofs, ComeBackFromTheirText) {
  ShownProofs before, after;
  before.HasVersion(1, 7, kBytes);
  before.HasAdmitted(1, 6, "a");
  EXPECT_EQ(before.Text(), "v:1:7:00ff2c3a a:1:6:61");
  after.Restore(before.Text());
  const v1::Join join = JoinWith(after, 7, 6);
  EXPECT_EQ(join.version_proofs(1), kBytes);
  EXPECT_EQ(join.admission_proofs(1), "a");
}

TEST(ShownProofs, WhatIsNoTextOfThemIsLeftOut) {
  ShownProofs proofs;
  proofs.Restore("v:1:7 x:1:7:61 v:one:7:61  v:1:7:61 :::");
  EXPECT_EQ(proofs.Text(), "v:1:7:61");
}

}  // namespace
}  // namespace causeway::transport
