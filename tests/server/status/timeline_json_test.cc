// The JSON of GET /timeline.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "server/status/status_snapshot.h"
#include "tests/server/status/large_snapshot.h"

namespace causeway::server {
namespace {

using nlohmann::json;

TEST(TimelineJson, HasRoundsWithWhatHasComeSoFarAndNullForTheRest) {
  RoundLog log;
  log.Begun(0, 4, "asia", 100);
  log.Arrived(0, 4, "eu", 90, 120);
  log.Arrived(0, 4, "asia", 100, 130);
  log.Decided(0, 4, "all 2 \"active\" sites", 131);
  log.Merged(0, {4, 1}, 140);
  log.Taken(0, 4, "eu", 0, 1, 141, 150);
  log.Begun(0, 5, "eu", 200);
  StatusSnapshot snapshot;
  snapshot.unix_ms = 300;
  snapshot.sites = {{.name = "asia"}, {.name = "eu"}};
  snapshot.rounds = log.rounds();
  EXPECT_EQ(json::parse(TimelineJson(snapshot)), json::parse(R"({
    "unix_ms": 300, "sites": ["asia", "eu"], "rounds": [
      {"fragment": 0, "version": 4, "first_unix_ms": 90, "arrived": [[0, 100, 130], [1, 90, 120]],
       "decided_unix_ms": 131, "merged_unix_ms": 140, "taken": [[1, 150]], "reason": "all 2 \"active\" sites"},
      {"fragment": 0, "version": 5, "first_unix_ms": 200, "arrived": [[1, 200, null]], "decided_unix_ms": null,
       "merged_unix_ms": null, "taken": [], "reason": ""}]})"));
}

TEST(TimelineJson, KeepsTheNewestRoundsThatFit) {
  RoundLog log;
  for (core::Version version = 1; version <= 256; ++version) {
    for (int site = 0; site < 64; ++site) {
      log.Arrived(0, version, SiteNameForTest(site), 1'763'700'000'000, 1'763'700'000'900);
    }
    log.Decided(0, version, "all 64 active sites have contributed", 1'763'700'001'000);
    for (int site = 0; site < 64; ++site) {
      log.Taken(0, version, SiteNameForTest(site), 0, 1, 1'763'700'001'100, 1'763'700'002'000);
    }
  }
  StatusSnapshot snapshot = LargeSnapshot(64, 1);
  snapshot.rounds = log.rounds();
  const std::string text = TimelineJson(snapshot);
  EXPECT_LE(text.size(), kMaxTimelineBytes);
  EXPECT_GT(text.size(), kMaxTimelineBytes * 9 / 10);
  const json rounds = json::parse(text).at("rounds");
  EXPECT_EQ(rounds.back().at("version"), 256);
  EXPECT_EQ(rounds.front().at("version"), 257 - static_cast<int>(rounds.size()));
  EXPECT_EQ(rounds.back().at("taken").size(), 64u);
}

TEST(TimelineJson, ARunWithoutRoundsHasNone) {
  EXPECT_EQ(json::parse(TimelineJson({})), json::parse(R"({"unix_ms": 0, "sites": [], "rounds": []})"));
}

}  // namespace
}  // namespace causeway::server
