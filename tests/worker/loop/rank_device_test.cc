#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "tests/worker/ranks/gloo_ranks.h"
#include "worker/loop/site_trainer.h"

namespace causeway::worker {
namespace {

using ::testing::HasSubstr;

TEST(GpuIndex, IsTheLocalRankWhereSeveralAreVisible) {
  EXPECT_EQ(GpuIndex("cuda", 8, 3), 3);
  EXPECT_EQ(GpuIndex("auto", 8, 3), 3);
  EXPECT_EQ(GpuIndex("cuda", 2, 3), 3);  // which is then not found, with both numbers
}

TEST(GpuIndex, IsZeroWhereALauncherShowsEachRankItsOwn) {
  EXPECT_EQ(GpuIndex("cuda", 1, 3), 0);
  EXPECT_EQ(GpuIndex("auto", 1, 3), 0);
}

TEST(GpuIndex, ThatIsGivenIsTaken) {
  EXPECT_EQ(GpuIndex("cuda:2", 8, 3), 2);
  EXPECT_EQ(GpuIndex("cuda:2", 1, 3), 2);
}

TEST(GpuIndex, IsNoneOfOtherDevices) {
  for (const char* const device : {"cpu", "cuda:", "cuda:-1", "cuda:x", "tpu"}) {
    EXPECT_EQ(GpuIndex(device, 8, 3), std::nullopt) << device;
  }
}

std::vector<absl::Status> Checked(const std::vector<DeviceKind>& kinds) {
  const std::vector<RankUnderTest> ranks = OverThreads(static_cast<int>(kinds.size()));
  return OnRanks(static_cast<int>(kinds.size()), [&](int rank) {
    return CheckSameKind({.values = ranks[rank].collectives.get(), .timeout_s = 60}, kinds[rank]);
  });
}

TEST(CheckSameKind, TakesRanksOfOneKind) {
  for (const DeviceKind kind : {DeviceKind::kProcessor, DeviceKind::kAdded, DeviceKind::kGpu}) {
    for (const absl::Status& status : Checked({kind, kind, kind})) EXPECT_TRUE(status.ok()) << status;
  }
  EXPECT_TRUE(CheckSameKind({}, DeviceKind::kGpu).ok());
}

TEST(CheckSameKind, NamesTheRankThatDiffersOnAllRanks) {
  for (const absl::Status& status : Checked({DeviceKind::kProcessor, DeviceKind::kProcessor, DeviceKind::kGpu})) {
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr("rank 2 of 3"));
    EXPECT_THAT(status.message(), HasSubstr("expected the processor, as rank 0 has, got a GPU"));
  }
}

}  // namespace
}  // namespace causeway::worker
