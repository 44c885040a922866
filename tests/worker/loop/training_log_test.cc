#include "worker/loop/training_log.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/formats/temporary_folder.h"

namespace causeway::worker {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class TrainingLogTest : public ::testing::Test {
 protected:
  std::vector<json> Lines() const {
    std::ifstream file(path_);
    std::vector<json> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(json::parse(line));
    return lines;
  }

  const TemporaryFolder folder_;
  const std::string path_ = folder_ / "training.jsonl";
};

TEST_F(TrainingLogTest, ALineForEachThingThatHappened) {
  const auto log = TrainingLog::Open(path_, "eu");
  ASSERT_TRUE(log.ok()) << log.status();
  (*log)->Step(5, {.step = 12, .tokens = 640, .loss = 1.5, .compute_s = 3, .wall_s = 4}, /*rounds=*/2);
  (*log)->Eval(6, 1.25, {2, 3});
  (*log)->Checkpoint(7, 12, 0.5);
  (*log)->Export(8, "out/round-000002", 0.25);
  const std::vector<json> lines = Lines();
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[0]["kind"], "step");
  EXPECT_EQ(lines[0]["site"], "eu");
  EXPECT_EQ(lines[0]["unix_ms"], 5);
  EXPECT_EQ(lines[0]["step"], 12);
  EXPECT_EQ(lines[0]["tokens"], 640);
  EXPECT_EQ(lines[0]["loss"], 1.5);
  EXPECT_EQ(lines[0]["utilization"], 0.75);
  EXPECT_EQ(lines[0]["rounds"], 2);
  EXPECT_EQ(lines[1], json({{"kind", "eval"}, {"unix_ms", 6}, {"site", "eu"}, {"loss", 1.25}, {"versions", {2, 3}}}));
  EXPECT_EQ(lines[2]["step"], 12);
  EXPECT_EQ(lines[3]["path"], "out/round-000002");
}

TEST_F(TrainingLogTest, AFileThatWasMovedOrRemovedIsBegunAnew) {
  const auto log = TrainingLog::Open(path_, "eu");
  ASSERT_TRUE(log.ok());
  (*log)->Checkpoint(1, 12, 0.5);
  std::filesystem::rename(path_, path_ + ".1");
  (*log)->Checkpoint(2, 13, 0.5);
  ASSERT_EQ(Lines().size(), 1u);
  EXPECT_EQ(Lines()[0]["step"], 13);
  std::filesystem::remove(path_);
  std::ofstream(path_).close();  // as `create` of logrotate does
  (*log)->Checkpoint(3, 14, 0.5);
  ASSERT_EQ(Lines().size(), 1u);
  EXPECT_EQ(Lines()[0]["step"], 14);
}

TEST_F(TrainingLogTest, NumbersThatAreNotFiniteAreNull) {
  const auto log = TrainingLog::Open(path_, "eu");
  ASSERT_TRUE(log.ok());
  (*log)->Step(5, {.loss = std::nan("")}, 0);
  (*log)->Eval(6, INFINITY, {});
  EXPECT_TRUE(Lines()[0]["loss"].is_null());
  EXPECT_TRUE(Lines()[0]["utilization"].is_null());
  EXPECT_TRUE(Lines()[1]["loss"].is_null());
}

TEST_F(TrainingLogTest, AWorkerThatStartsAgainGoesOnInItsFile) {
  for (int life = 0; life < 2; ++life) {
    const auto log = TrainingLog::Open(path_, "eu");
    ASSERT_TRUE(log.ok());
    (*log)->Eval(life, 1, {});
  }
  EXPECT_EQ(Lines().size(), 2u);
}

TEST_F(TrainingLogTest, AFileThatCannotBeOpenedIsNamed) {
  const auto log = TrainingLog::Open("/proc/none/x", "eu");
  EXPECT_EQ(log.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(log.status().message()), HasSubstr("/proc/none/x"));
}

TEST_F(TrainingLogTest, ADiskThatIsFullDoesNotEndTheTraining) {
  const auto log = TrainingLog::Open("/dev/full", "eu");
  ASSERT_TRUE(log.ok());
  (*log)->Eval(1, 1, {});
  (*log)->Eval(2, 1, {});
}

}  // namespace
}  // namespace causeway::worker
