#include "offload/calibration.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/formats/temporary_folder.h"
#include "tests/offload/fake_device.h"

namespace causeway::offload {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kParameters = 3'000'000;

TEST(Calibration, MeasuresWhatThereIs) {
  core::ThreadTeam team(2);
  const absl::StatusOr<Bandwidths> host = MeasureBandwidths(kParameters, team, nullptr);
  ASSERT_TRUE(host.ok());
  EXPECT_GT(host->dram, 1e6);
  EXPECT_GT(host->cpu_parameters, 1e5);
  EXPECT_EQ(host->to_device, 0);
  FakeDevice device(FakeDevice::Runs::kThreads, 1);
  const absl::StatusOr<Bandwidths> both = MeasureBandwidths(kParameters, team, &device);
  ASSERT_TRUE(both.ok());
  EXPECT_GT(both->to_device, 1e6);
  EXPECT_GT(both->to_host, 1e6);
  EXPECT_GT(both->both_ways, 1e6);
  EXPECT_EQ(device.allocations() + device.pinned(), 0u);
}

TEST(Calibration, IsMeasuredOnceForAMachineDeviceAndSize) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/cache/causeway/bandwidths.json";
  core::ThreadTeam team(1), two(2);
  const Calibration first = *Calibrate(kParameters, team, nullptr, path);
  EXPECT_TRUE(first.measured);
  EXPECT_EQ(first.note, "");
  const Calibration again = *Calibrate(kParameters, team, nullptr, path);
  EXPECT_FALSE(again.measured);
  EXPECT_EQ(again.bandwidths, first.bandwidths);
  EXPECT_TRUE(Calibrate(kParameters / 2, team, nullptr, path)->measured);
  EXPECT_TRUE(Calibrate(kParameters, two, nullptr, path)->measured);
  EXPECT_FALSE(Calibrate(kParameters, team, nullptr, path)->measured);
  EXPECT_FALSE(Calibrate(kParameters + 1, team, nullptr, path)->measured);  // is much like it
}

TEST(Calibration, OfASmallModelIsNotKept) {
  const TemporaryFolder folder;
  core::ThreadTeam team(1);
  EXPECT_TRUE(Calibrate(1000, team, nullptr, folder / "bandwidths.json")->measured);
  EXPECT_FALSE(std::filesystem::exists(folder / "bandwidths.json"));
}

TEST(Calibration, AFileThatIsNotOneIsWrittenAnew) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/bandwidths.json";
  core::ThreadTeam team(1);
  for (const char* text : {"", "{", "[1]", R"({"format": 2, "machines": 3})", R"({"format": 7})"}) {
    std::ofstream(path) << text;
    EXPECT_TRUE(Calibrate(kParameters, team, nullptr, path)->measured) << text;
    EXPECT_FALSE(Calibrate(kParameters, team, nullptr, path)->measured) << text;
  }
}

TEST(Calibration, AFileThatCannotBeWrittenCostsOnlyTheMeasurement) {
  core::ThreadTeam team(1);
  const Calibration calibration = *Calibrate(kParameters, team, nullptr, "/proc/causeway/bandwidths.json");
  EXPECT_TRUE(calibration.measured);
  EXPECT_THAT(calibration.note, HasSubstr("/proc/causeway/bandwidths.json"));
}

}  // namespace
}  // namespace causeway::offload
