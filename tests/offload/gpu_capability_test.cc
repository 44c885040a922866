#include "offload/gpu_capability.h"

#include <gtest/gtest.h>

namespace causeway::offload {
namespace {

TEST(GpuCapability, FromEightOnIsTaken) {
  for (const auto& [major, minor] : {std::pair(8, 0), {8, 6}, {8, 9}, {9, 0}, {10, 0}, {12, 1}}) {
    EXPECT_TRUE(CheckCapability({"a GPU", major, minor}).ok()) << major << "." << minor;
  }
}

TEST(GpuCapability, OlderIsRefusedWithTheExpectedAndItsOwn) {
  EXPECT_EQ(CheckCapability({"Tesla T4", 7, 5}),
            absl::UnavailableError("Tesla T4: expected a GPU of compute capability 8.0 or greater, got 7.5"));
  EXPECT_TRUE(absl::IsUnavailable(CheckCapability({"Tesla V100", 7, 0})));
}

TEST(GpuCapability, WithoutAKernelIsRefusedWithThoseOfTheBuild) {
  EXPECT_EQ(NoKernelFor({"a GPU", 10, 0}, "80-real, 90", "no kernel image is available"),
            absl::UnavailableError("a GPU: expected a GPU for which this build has kernels (80-real, 90), got compute "
                                   "capability 10.0: no kernel image is available"));
}

}  // namespace
}  // namespace causeway::offload
