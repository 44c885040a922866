#include <fcntl.h>
#include <gmock/gmock-matchers.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <tuple>

#include "absl/strings/str_split.h"
#include "ctl/command_help.h"
#include "ctl/figures_text.h"
#include "ctl/loss_chart.h"
#include "ctl/program_log.h"
#include "ctl/report_command.h"
#include "ctl/round_command.h"
#include "ctl/status_command.h"
#include "tests/plan/round_setting.h"

namespace causeway::ctl {
namespace {

using nlohmann::json;
using plan::FourSites;
using plan::RoundConfig;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

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

json Site(const std::string& name) {
  return {{"name", name},
          {"state", "gone"},
          {"reason", "all steps are done"},
          {"step", 250},
          {"tokens", 128000},
          {"tokens_per_s", 8037.4},
          {"loss", 2.037},
          {"utilization", 0.945},
          {"stall_s", 1.5},
          {"wall_s", 15.0},
          {"up_bytes", 5'000'000},
          {"down_bytes", 3'000'000},
          {"contributions_merged", 46},
          {"contributions_sent", 47},
          {"digests_matching", 1},
          {"loss_history", {{1'000'000, 4.6}, {1'060'000, 2.1}}}};
}

json Status(const std::string& kind = "llama") {
  return {
      {"run_id", "atlas"},
      {"version", "0.1.0"},
      {"unix_ms", 1'060'000},
      {"state", "done"},
      {"reason", ""},
      {"epoch", 1},
      {"num_shards", 1},
      {"parameters", 824448},
      {"float32_every_step_bytes", 1'600'000'000},
      {"config", {{"model", {{"kind", kind}}}, {"sync", {{"sync_every", 20}}}}},
      {"codec", {{"up", "int4"}, {"down", "int8"}}},
      {"eval_loss",
       {{"start", 5.297}, {"latest", 1.81}, {"history", {{{"unix_ms", 1'000'000}, {"version", 0}, {"loss", 5.297}}}}}},
      {"sites", {Site("oslo")}},
      {"fragments",
       {{{"id", 0}, {"parameters", 824448}, {"version", 12}, {"digest", "5f8cc66c0b41e915"}, {"state", "idle"}}}}};
}

std::string Html(const json& status, ReportInput input = {}) {
  input.status_json = status.dump();
  const absl::StatusOr<std::string> html = ReportHtml(input);
  EXPECT_TRUE(html.ok()) << html.status();
  return html.value_or("");
}

v1::HistoryEvent Event(const std::string& kind, const std::string& site, const std::string& text) {
  v1::HistoryEvent event;
  event.set_kind(kind);
  event.set_site(site);
  event.set_fragment(-1);
  event.set_text(text);
  return event;
}

TEST(Report, HasTheFiguresOfTheStatus) {
  EXPECT_THAT(
      Html(Status()),
      AllOf(HasSubstr("1.81<small>from 5.297 nats per token"), HasSubstr("8 MB<small>5 MB up, 3 MB down"),
            HasSubstr("10.0%<small>of the sites&#39; time"), HasSubstr("46 of 47"), HasSubstr("5f8cc66c0b41e915")));
}

TEST(Report, SaysWhatTheReductionIsMadeOf) {
  EXPECT_THAT(Html(Status()),
              HasSubstr("200 times<small>20 times by syncing every 20 steps, 10.0 times by int4 up and int8 down"));
}

TEST(Report, AfterARestartTheReductionIsAnUpperBound) {
  json status = Status();
  status["epoch"] = 2;
  EXPECT_THAT(Html(status), HasSubstr("at most 200 times"));
}

TEST(Report, NeedsNoNetworkAndRunsNoScript) {
  EXPECT_THAT(Html(Status()), AllOf(Not(HasSubstr("http:")), Not(HasSubstr("https:")), Not(HasSubstr("<script")),
                                    Not(HasSubstr("src=")), Not(HasSubstr("href="))));
}

TEST(Report, NamesAndReasonsAreTextNeverMarkup) {
  json status = Status();
  status["run_id"] = "<b>run</b>";
  status["sites"] = {Site("<script>alert('eu')</script>")};
  ReportInput input{.sample = "a < b"};
  input.events.Add(Event("join", "<i>", "\"quoted\""));
  EXPECT_THAT(Html(status, input), AllOf(Not(HasSubstr("<script")), Not(HasSubstr("<b>")), Not(HasSubstr("<i>")),
                                         HasSubstr("&lt;script&gt;alert(&#39;eu&#39;)"), HasSubstr("a &lt; b"),
                                         HasSubstr("&quot;quoted&quot;")));
}

TEST(Report, RoundsAreCountedAndOtherEventsListed) {
  ReportInput input;
  input.events.Add(Event("round", "", "merged"));
  input.events.Add(Event("round", "", "merged"));
  input.events.Add(Event("drain", "oslo", "asked for by operator"));
  EXPECT_THAT(Html(Status(), input), AllOf(HasSubstr("2 rounds were merged."), HasSubstr("asked for by operator")));
}

TEST(Report, EventsOfAllShardsAreListedByTheirTimeAndSayWhoseTheyAre) {
  json status = Status();
  status["num_shards"] = 3;
  ReportInput input{.shards = 2};
  for (const auto& [unix_ms, shard, text] : {std::tuple{1, 0, "first"}, {3, 0, "last"}, {2, 1, "between"}}) {
    v1::HistoryEvent event = Event("start", "", text);
    event.set_unix_ms(unix_ms);
    input.events.Add(event, shard);
    input.events.Add(Event("round", "", "merged"), shard);
  }
  const std::string html = Html(status, input);
  EXPECT_THAT(html, HasSubstr("3 rounds were merged; these are the events of 2 of 3 coordinators: name all in "
                              "--coordinator."));
  EXPECT_LT(html.find(">first<"), html.find(">shard 1: between<"));
  EXPECT_LT(html.find(">shard 1: between<"), html.find(">last<"));
}

TEST(Report, StaysBelowAMegabyteForTheLargestRun) {
  json status = Status();
  for (int i = 1; i < 64; ++i) {
    json site = Site("site" + std::to_string(i));
    site["reason"] = std::string(500, 'r');
    for (int point = 0; point < 100; ++point) site["loss_history"].push_back({1'060'000 + point, 2.0});
    status["sites"].push_back(site);
    for (int copies = 0; copies < 64; ++copies) status["fragments"].push_back(status["fragments"][0]);
  }
  status["config"]["sync"]["fragments"] = std::string(2'000'000, 'n');
  ReportInput input;
  for (int i = 0; i < 5000; ++i) input.events.Add(Event("drop", "site1", std::string(5000, 'd')));
  const std::string html = Html(status, input);
  EXPECT_LT(html.size(), 1'000'000u);
  EXPECT_THAT(html, HasSubstr("4700 earlier events are in causewayctl history"));
}

TEST(Report, SaysHowToLoadAnExportOrHowToMakeOne) {
  EXPECT_THAT(Html(Status(), {.model_dir = "/models/atlas"}),
              AllOf(HasSubstr("model=&quot;/models/atlas&quot;"), Not(HasSubstr("causewayctl export"))));
  EXPECT_THAT(Html(Status(), {.coordinator = "hub:7077"}),
              HasSubstr("causewayctl export --coordinator=hub:7077 --out=DIR"));
}

TEST(Report, AModelOfTheSitesOwnIsLoadedByItsOwnNames) {
  EXPECT_THAT(Html(Status("external"), {.model_dir = "out"}),
              AllOf(HasSubstr("load_model(model, &quot;out/model.safetensors&quot;)"),
                    HasSubstr("from_pretrained(&quot;out&quot;)")));
}

TEST(Report, WithoutALossOfTheRunThereIsNoFigureOfIt) {
  json status = Status();
  status["eval_loss"] = nullptr;
  status["sites"][0]["loss_history"] = json::array();
  EXPECT_THAT(Html(status), AllOf(Not(HasSubstr("Held-out loss")), Not(HasSubstr("<svg"))));
}

TEST(Report, WhatIsNoStatusIsRefused) {
  EXPECT_EQ(ReportHtml({.status_json = "{}"}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReportHtml({.status_json = "no JSON"}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(LossChart, IsEmptyWithoutAPoint) {
  EXPECT_THAT(LossChartSvg({}), IsEmpty());
  EXPECT_THAT(LossChartSvg({{.name = "oslo"}}), IsEmpty());
}

TEST(LossChart, DrawsEachSeriesAndItsLastValue) {
  const std::string svg = LossChartSvg({{.name = "oslo", .points = {{0, 4}, {1000, 2}}},
                                        {.name = "held out", .points = {{0, 5}, {1000, 3}}, .emphasized = true}});
  EXPECT_THAT(svg, AllOf(HasSubstr("oslo 2.000"), HasSubstr("held out 3.000"), HasSubstr("stroke='var(--hue-0)'"),
                         HasSubstr("stroke='var(--hue-1)'")));
}

TEST(LossChart, OnePointAndEqualLossesHaveFiniteCoordinates) {
  EXPECT_THAT(LossChartSvg({{.name = "oslo", .points = {{5, 2}}}}),
              AllOf(Not(HasSubstr("nan")), Not(HasSubstr("inf"))));
}

}  // namespace
}  // namespace causeway::ctl
