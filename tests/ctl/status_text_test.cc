#include <fcntl.h>
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "absl/strings/str_split.h"
#include "ctl/command_help.h"
#include "ctl/figures_text.h"
#include "ctl/program_log.h"
#include "ctl/round_command.h"
#include "ctl/status_command.h"
#include "tests/plan/round_setting.h"

namespace causeway::ctl {
namespace {

using nlohmann::json;
using plan::FourSites;
using plan::RoundConfig;
using ::testing::HasSubstr;
using testing::HasSubstr;

json StatusOfAGoneSite() {
  return {{"run_id", "atlas"},
          {"state", "training"},
          {"reason", ""},
          {"parameters", 824448},
          {"codec", {{"up", "int4"}, {"down", "int4"}}},
          {"uptime_s", 12.5},
          {"eval_loss", {{"start", 5.3}, {"latest", nullptr}}},
          {"sites",
           {{{"name", "oslo"},
             {"state", "gone"},
             {"ranks", {{"ranks", 8}}},
             {"step", 1385},
             {"tokens_per_s", 4572},
             {"loss", 1.633},
             {"utilization", 0.917},
             {"up_bytes", 12.2e6},
             {"down_bytes", 13.3e6},
             {"up_bytes_per_s", 0},
             {"down_bytes_per_s", 0},
             {"reason", "drained"}}}},
          {"fragments", json::array()}};
}

TEST(StatusText, ParametersAreInMillionsAsThePlanHasThem) {
  const auto text = StatusText(StatusOfAGoneSite().dump());
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_THAT(*text, HasSubstr("0.8244 M parameters"));
}

TEST(StatusText, LossesOfSitesStandWhereThereIsNoneOfTheRunWithTheReason) {
  json status = StatusOfAGoneSite();
  EXPECT_THAT(*StatusText(status.dump()), HasSubstr("eval loss 5.3 → -\n"));
  status["eval_loss"] = nullptr;
  status["eval_loss_reason"] = "each on its own";
  status["eval_loss_by_site"] = {{"eu", {{"loss", 1.5}}}, {"us", {{"loss", 2.25}}}};
  EXPECT_THAT(*StatusText(status.dump()),
              HasSubstr("eval loss - (each on its own)\neval loss of each site's own data: eu 1.5, us 2.25\n"));
}

json StatusOfThreeSites() {
  json status = StatusOfAGoneSite();
  status["reason"] = "waits for the initial parameters of shard 1, which has not been heard of";
  status["config"] = {{"run", {{"steps", 2000}}}};
  for (const char* name : {"a-site-with-a-long-name.example", "us"}) {
    json site = status["sites"][0];
    site["name"] = name;
    site["state"] = "training";
    site["step"] = 1200;
    site["tokens"] = 1200 * 1024;
    status["sites"].push_back(site);
  }
  status["fragments"] = {{{"id", 3},
                          {"parameters", 1234567},
                          {"version", 77},
                          {"digest", "0123456789abcdef"},
                          {"state", "open"},
                          {"reason", "waiting for us"},
                          {"contributors", {"a-site-with-a-long-name.example"}}}};
  status["alarms"] = {{{"name", "digest_mismatch"},
                       {"severity", "critical"},
                       {"text", "us holds other parameters than the coordinator in 1 fragment, first in 3"}},
                      {{"name", "site_gone"}, {"severity", "warning"}, {"text", "oslo is gone: \033[31mnot heard of"}}};
  return status;
}

size_t Widest(const std::string& text) {
  size_t widest = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    widest = std::max(widest, ColumnsOf(std::string(line)));
  }
  return widest;
}

TEST(StatusText, FitsAnyTerminalFromFortyColumnsOn) {
  const std::string json = StatusOfThreeSites().dump();
  for (const size_t width : {40, 60, 80, 120}) {
    const std::string text = *StatusText(json, {.width = width});
    EXPECT_LE(Widest(text), width) << text;
    EXPECT_THAT(text, HasSubstr("✕ digest_mismatch: us holds"));
    EXPECT_THAT(text, HasSubstr("1200")) << "the step stays" << text;
    EXPECT_THAT(text, HasSubstr("77")) << "and the version" << text;
  }
  EXPECT_THAT(*StatusText(json, {.width = 120}), HasSubstr("tokens/s"));
  EXPECT_THAT(*StatusText(json), HasSubstr("step 1200 of 2000, about 3m left"));
  EXPECT_THAT(*StatusText(json), HasSubstr("down rate"));
}

TEST(StatusText, ARunOfSoManyTokensSaysHowFarItIs) {
  json status = StatusOfThreeSites();
  status["config"] = {{"run", {{"steps", 0}, {"tokens", 40000}}}};
  for (json& site : status["sites"]) site["tokens_per_s"] = 100.0;
  status["sites"][1]["run_tokens"] = 10000;
  const size_t training =
      std::ranges::count(status["sites"], "training", [](const json& site) { return site["state"]; });
  ASSERT_EQ(training, 2) << "200 tokens/s";
  EXPECT_THAT(*StatusText(status.dump()), HasSubstr("25 % of 4e+04 tokens, about 2m30s left"));
}

TEST(StatusText, ColoursAreItsOwnAndNoneOfAName) {
  const std::string json = StatusOfThreeSites().dump();
  EXPECT_THAT(*StatusText(json, {.width = 80, .color = true}), HasSubstr("\033[31m✕ digest"));
  EXPECT_THAT(*StatusText(json, {.width = 80}), ::testing::Not(HasSubstr("\033")));
}

TEST(CheckOfStatus, IsALineAndTheExitStatusOfAMonitor) {
  json status = StatusOfThreeSites();
  const auto check = [&] { return *CheckOfStatus(status.dump()); };
  EXPECT_EQ(check().code, 2);
  EXPECT_THAT(check().line, ::testing::StartsWith("CRITICAL - run atlas: digest_mismatch: us holds"));
  status["alarms"].erase(0);
  EXPECT_EQ(check().code, 1);
  status["alarms"] = json::array();
  EXPECT_EQ(check().code, 0);
  EXPECT_THAT(check().line, ::testing::StartsWith("OK - run atlas: training"));
  EXPECT_THAT(check().line, ::testing::EndsWith("2 sites train, step 1200 of 2000, about 3m left | sites=2"));
  status["state"] = "waiting";
  EXPECT_EQ(check().code, 1);
  EXPECT_FALSE(CheckOfStatus("{}").ok());
}

TEST(StatusText, OtherJsonIsNoStatus) {
  EXPECT_EQ(absl::StatusCode::kInvalidArgument, StatusText("{\"sites\": 3}").status().code());
}

TEST(RoundText, TextAndJsonSayTheSame) {
  const plan::RoundPlan plan = PlanOf(RoundConfig(), FourSites(200));
  const auto json = nlohmann::json::parse(RoundJson(plan));
  EXPECT_EQ(json["parameters"], 30'800'000);
  EXPECT_DOUBLE_EQ(json["utilization"], plan.round.utilization);
  EXPECT_DOUBLE_EQ(json["hub_mbit"], 200);
  EXPECT_DOUBLE_EQ(json["up"]["site_bytes_per_round"], plan.round.up_bytes);
  EXPECT_TRUE(json["site_needs_mbit"].is_null());  // with a delay of one step no link is fast enough
  const std::string text = RoundText(plan);
  EXPECT_THAT(text, HasSubstr("30.8 M parameters in 8 fragments, 4 sites"));
  EXPECT_THAT(text, HasSubstr(plan.bottleneck));
}

TEST(RoundText, ASweepHasALineForEachRow) {
  const auto rows = MakeSweep(RoundConfig(), FourSites(200));
  ASSERT_TRUE(rows.ok()) << rows.status();
  const std::string text = SweepText(*rows, FourSites(200));
  EXPECT_EQ(std::ranges::count(text, '\n'), 3 + std::ssize(*rows));
}

const Confirmation kStop = {.command = "stop", .consequence = "ends the run", .run = "atlas"};

TEST(Confirmation, IsTheRunsNameOrYes) {
  Confirmation named = kStop, other = kStop, yes = kStop;
  named.given = "atlas", other.given = "atlantis", yes.yes = true;
  EXPECT_TRUE(Confirm(named, nullptr).ok());
  EXPECT_TRUE(Confirm(yes, nullptr).ok());
  EXPECT_EQ(Confirm(other, nullptr).message(), "stop: expected the run's name, atlas, got 'atlantis'");
}

TEST(Confirmation, WithoutAPersonIsAskedForInTheError) {
  EXPECT_EQ(Confirm(kStop, nullptr).message(),
            "stop ends the run: expected the run's name, `causewayctl stop atlas`, or --yes");
}

TEST(Confirmation, OfAPersonIsTheNameTyped) {
  std::istringstream right(" atlas \n"), wrong("y\n"), none("");
  EXPECT_TRUE(Confirm(kStop, &right).ok());
  EXPECT_EQ(Confirm(kStop, &wrong).message(), "stop: expected the run's name, atlas, got 'y'; nothing was done");
  EXPECT_FALSE(Confirm(kStop, &none).ok());
}

// A pipe whose reader reads only when the test does.
class LogWriterTest : public ::testing::Test {
 protected:
  LogWriterTest() {
    EXPECT_EQ(pipe(ends_), 0);
    fcntl(ends_[0], F_SETFL, O_NONBLOCK);
    writer_ = new LogWriter(ends_[1]);  // as its header says
  }
  ~LogWriterTest() override { Read(); }

  std::string Read() {
    std::string all;
    char piece[1 << 16];
    for (ssize_t size = 0; (size = read(ends_[0], piece, sizeof piece)) > 0;) all.append(piece, size);
    return all;
  }
  std::string ReadUntilEmpty() {
    std::string all;
    while (writer_->figures().waiting > 0) {
      all += Read();
      writer_->Flush(1);
    }
    return all + Read();
  }
  void Fill(size_t bytes) {
    for (size_t written = 0; written < bytes; written += kLine.size()) writer_->Add(kLine);
  }

  const std::string kLine = std::string(999, 'x') + "\n";
  LogWriter* writer_ = nullptr;

 private:
  int ends_[2] = {};
};

TEST_F(LogWriterTest, ALineIsThereBeforeTheCallReturns) {
  writer_->Add("one\n");
  EXPECT_EQ(Read(), "one\n");
  EXPECT_EQ(writer_->figures().stuck_s, 0);
}

TEST_F(LogWriterTest, LinesThatNobodyReadsWaitAndComeWholeAndInOrder) {
  Fill(200'000);
  writer_->Add("the last\n");
  writer_->Flush(1);
  EXPECT_GT(writer_->figures().waiting, 100);
  const std::string all = ReadUntilEmpty();
  EXPECT_EQ(all.size(), 200 * kLine.size() + 9);
  EXPECT_EQ(all.substr(all.size() - 11), "x\nthe last\n");
  EXPECT_EQ(writer_->figures().dropped, 0);
}

TEST_F(LogWriterTest, BeyondItsRoomTheOldestAreDroppedAndCounted) {
  Fill(2 * LogWriter::kMostBytes);
  writer_->Add("the last\n");
  const int64_t dropped = writer_->figures().dropped;
  EXPECT_GT(dropped, 900);
  const std::string all = ReadUntilEmpty();
  EXPECT_EQ(all.substr(all.size() - 11), "x\nthe last\n");
  const std::string said = "... " + std::to_string(dropped) + " lines were dropped: the log was not read\n";
  EXPECT_NE(all.find(said), std::string::npos) << said;
  writer_->Add("again\n");
  EXPECT_EQ(Read(), "again\n");
}

TEST_F(LogWriterTest, AReaderThatHasGoneHoldsNothingUp) {
  int gone[2] = {};
  ASSERT_EQ(pipe(gone), 0);
  signal(SIGPIPE, SIG_IGN);
  auto* const writer = new LogWriter(gone[1]);
  close(gone[0]);
  for (int i = 0; i < 200; ++i) writer->Add(kLine);
  EXPECT_EQ(writer->figures().stuck_s, 0);
}

}  // namespace
}  // namespace causeway::ctl
