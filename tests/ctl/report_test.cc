#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <tuple>

#include "ctl/loss_chart.h"
#include "ctl/report_command.h"

namespace causeway::ctl {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

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
