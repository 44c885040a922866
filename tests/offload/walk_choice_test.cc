
#include <gtest/gtest.h>

#include <filesystem>
#include <vector>

#include "offload/calibration.h"
#include "tests/formats/temporary_folder.h"

namespace causeway::offload {
namespace {

void OnThisThread(int64_t values, absl::FunctionRef<void(int64_t first, int64_t count)> work) { work(0, values); }

// The default again, for other tests.
class WalkTest : public ::testing::Test {
 protected:
  ~WalkTest() override { SetWalk({}); }
};

TEST_F(WalkTest, NoWayThroughMemoryChangesABit) {
  constexpr int64_t kSize = 70'003;
  std::vector<float> g(kSize);
  for (int64_t i = 0; i < kSize; ++i) g[static_cast<size_t>(i)] = 1e-3f * static_cast<float>(i % 997);
  std::vector<std::vector<float>> parameters;
  std::vector<std::vector<uint16_t>> copies;
  for (const AdamWWalk walk : {AdamWWalk{true, true}, {false, true}, {true, false}, {false, false}}) {
    SetWalk(walk);
    EXPECT_EQ(CurrentWalk(), walk);
    std::vector<float> m(kSize), v(kSize), p(kSize, 1.0f);
    std::vector<uint16_t> copy(kSize);
    for (int64_t t = 1; t <= 3; ++t) {
      AdamWStep(MakeConstants({}, t), {.gradient = g.data(),
                                       .first_moment = m.data(),
                                       .second_moment = v.data(),
                                       .parameters = p.data(),
                                       .bfloat16_copy = copy.data(),
                                       .count = kSize});
    }
    parameters.push_back(p);
    copies.push_back(copy);
    EXPECT_EQ(parameters.back(), parameters.front());
    EXPECT_EQ(copies.back(), copies.front());
  }
}

TEST_F(WalkTest, IsMeasuredOnceForAProcessorAndItsThreadsAndKeptBesideTheBandwidths) {
  const TemporaryFolder folder;
  const std::string path = folder / "bandwidths.json";
  nlohmann::json kept = ReadCalibrations(path);
  kept["machines"]["another"] = {{"dram", 1.0}};
  ASSERT_EQ(WriteCalibrations(path, kept), "");
  int passes = 0;
  const auto counted = [&](int64_t values, absl::FunctionRef<void(int64_t first, int64_t count)> work) {
    ++passes;
    OnThisThread(values, work);
  };
  ChooseWalk(kLeastBeyondCaches, 1, counted, path);
  EXPECT_GT(passes, 0);
  const AdamWWalk chosen = CurrentWalk();
  const int measured = passes;
  SetWalk({.fetches_ahead = !chosen.fetches_ahead, .streams_copy = !chosen.streams_copy});
  ChooseWalk(kLeastBeyondCaches, 1, counted, path);
  EXPECT_EQ(passes, measured);
  EXPECT_EQ(CurrentWalk(), chosen);
  kept = ReadCalibrations(path);
  EXPECT_EQ(kept["machines"]["another"]["dram"], 1.0);
  ChooseWalk(kLeastBeyondCaches, 2, counted, path);  // other threads
  EXPECT_EQ(passes, 2 * measured);
  kept["walks"] = "none";
  ASSERT_EQ(WriteCalibrations(path, kept), "");
  ChooseWalk(kLeastBeyondCaches, 1, counted, path);
  EXPECT_EQ(passes, 3 * measured);
}

TEST_F(WalkTest, OfAStateThatCachesHoldNothingIsLearned) {
  int passes = 0;
  ChooseWalk(
      kLeastBeyondCaches - 1, 1, [&](int64_t, absl::FunctionRef<void(int64_t, int64_t)>) { ++passes; }, "");
  EXPECT_EQ(passes, 0);
  EXPECT_EQ(CurrentWalk(), AdamWWalk());
}

}  // namespace
}  // namespace causeway::offload
