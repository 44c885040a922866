#include "worker/ranks/rendezvous.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <atomic>

#include "absl/strings/str_cat.h"
#include "tests/formats/temporary_folder.h"
#include "tests/worker/ranks/ranks_under_test.h"

namespace causeway::worker {
namespace {

using ::testing::HasSubstr;

class RendezvousTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::vector<RankContact>> Meet(int rank, int world, const std::string& identity = "site a") const {
    return MeetRanks({.place = {rank, world, address_, "a test"}, .identity = identity, .timeout_s = 30},
                     {absl::StrCat("host", rank), absl::StrCat("addresses ", rank)});
  }

  const TemporaryFolder folder_;
  const std::string address_ = absl::StrCat("unix:", folder_ / "meet");
};

TEST_F(RendezvousTest, GivesEachRankTheContactsOfAllInTheirOrder) {
  const std::vector<absl::Status> statuses = OnRanks(3, [&](int rank) -> absl::Status {
    const auto all = Meet(rank, 3);
    if (!all.ok()) return all.status();
    const bool right = all->size() == 3 && (*all)[1].host == "host1" && (*all)[2].addresses == "addresses 2";
    return right ? absl::OkStatus() : absl::InternalError("other contacts");
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

TEST_F(RendezvousTest, AnotherSiteEndsItForAllWithBoth) {
  const std::vector<absl::Status> statuses =
      OnRanks(2, [&](int rank) { return Meet(rank, 2, rank == 0 ? "site a" : "site b").status(); });
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(status.message(), HasSubstr("expected all ranks alike, got rank "));
    EXPECT_THAT(status.message(), HasSubstr("(host0) with site a"));
    EXPECT_THAT(status.message(), HasSubstr("(host1) with site b"));
  }
}

TEST_F(RendezvousTest, AnotherWorldEndsItForAllWithBoth) {
  const std::vector<absl::Status> statuses =
      OnRanks(2, [&](int rank) { return Meet(rank, rank == 0 ? 2 : 3).status(); });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.message(), "expected ranks of a world of 2, as rank 0 is, got rank 1 of 3 (host1)");
  }
}

TEST_F(RendezvousTest, ARankThatDoesNotComeIsNamedAfterTheTimeout) {
  const auto met = MeetRanks({.place = {0, 3, address_, "a test"}, .timeout_s = 0.1}, {});
  EXPECT_EQ(met.status().message(), "expected 3 ranks within 0.1 s, got 1: rank 1, 2 has not come");
  const auto none = MeetRanks({.place = {1, 2, address_ + "-none", "a test"}, .timeout_s = 0.1}, {});
  EXPECT_THAT(none.status().message(), HasSubstr("expected rank 0 of 2 at unix:"));
}

TEST(OwnAddress, IsLocalWhereTheRendezvousIs) {
  EXPECT_EQ(*OwnAddress("unix:/x"), "127.0.0.1");
  EXPECT_EQ(*OwnAddress("127.0.0.1:1"), "127.0.0.1");
  EXPECT_EQ(*OwnAddress("[::1]:1"), "127.0.0.1");
  EXPECT_TRUE(absl::IsInvalidArgument(OwnAddress("host").status()));
}

}  // namespace
}  // namespace causeway::worker
