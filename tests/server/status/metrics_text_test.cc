// The text of GET /metrics.
#include "server/status/metrics_text.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <regex>
#include <set>
#include <sstream>

#include "server/status/alarms.h"
#include "tests/server/status/large_snapshot.h"

namespace causeway::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

StatusSnapshot Snapshot() {
  StatusSnapshot snapshot = LargeSnapshot(2, 2);
  snapshot.version = "1.2.3";
  snapshot.host = {1000, 400, 1234};
  snapshot.times.rounds.Add(0.2);
  snapshot.times.rounds.Add(1000);
  snapshot.times.up.Add(0.02);
  snapshot.syncs = {.count = 3, .seconds = 4.5, .slowest_s = 4};
  snapshot.scrub = {.passes = 2, .bytes = 500, .ended_unix_ms = 1'500'000, .damages = {}};
  snapshot.alarms = {{.name = "site_silent", .site = "a"}, {.name = "site_silent", .site = "b"}};
  return snapshot;
}

std::string Text(const StatusSnapshot& snapshot) {
  return MetricsText(snapshot, {.start_unix_s = 10, .resident_bytes = 20, .cpu_s = 30}, 4);
}

TEST(MetricsText, HasWhatOperatorsRelyOn) {
  const std::string text = Text(Snapshot());
  for (const char* line : {
           "causeway_site_up_bytes_total{site=\"datacenter-00\"} 123456789012\n",
           "causeway_site_step{site=\"datacenter-01\"} 123456\n",
           "causeway_site_steps_total{site=\"datacenter-01\"} 0\n",
           "causeway_site_contributing{site=\"datacenter-00\"} 1\n",
           "causeway_site_state{site=\"datacenter-00\",state=\"training\"} 1\n",
           "causeway_site_state{site=\"datacenter-00\",state=\"gone\"} 0\n",
           "causeway_run_state{state=\"training\"} 1\n",
           "causeway_run_state{state=\"paused\"} 0\n",
           "causeway_sites{state=\"training\"} 2\n",
           "causeway_fragment_version{fragment=\"1\"} 6001\n",
           "causeway_fragment_contributors{fragment=\"1\"} 2\n",
           "causeway_site_cosine_ratio{site=\"datacenter-00\"} 0.123456789\n",
           "causeway_fragment_gradient_norm{fragment=\"1\"} 0.123456789\n",
           "causeway_fragment_outer_correlation_ratio{fragment=\"1\"} 0.123456789\n",
           "causeway_fragment_outer_amplification_ratio{fragment=\"1\"} 2.123456789\n",
           "causeway_fragment_outer_amplification_predicted_ratio{fragment=\"1\"} 2.123456789\n",
           "causeway_fragment_outer_lr_effective{fragment=\"1\"} 1.23456789\n",
           "causeway_quorum_sites 32\n",
           "causeway_rounds_total 400000\n",
           "causeway_disk_free_bytes 1000\n",
           "causeway_disk_reserved_bytes 400\n",
           "causeway_fsync_seconds_count 3\n",
           "causeway_fsync_seconds_sum 4.5\n",
           "causeway_fsync_seconds{quantile=\"1\"} 4\n",
           "causeway_scrub_passes_total 2\n",
           "causeway_scrub_bytes 500\n",
           "causeway_scrub_ended_timestamp_seconds 1500\n",
           "causeway_certificate_expiry_timestamp_seconds 1234\n",
           "causeway_alarm{alarm=\"site_silent\",severity=\"warning\"} 1\n",
           "causeway_build_info{version=\"1.2.3\"} 1\n",
           "causeway_http_event_streams 4\n",
           "causeway_round_seconds_bucket{le=\"0.1\"} 0\n",
           "causeway_round_seconds_bucket{le=\"0.25\"} 1\n",
           "causeway_round_seconds_bucket{le=\"+Inf\"} 2\n",
           "causeway_round_seconds_count 2\n",
           "causeway_transfer_seconds_bucket{direction=\"up\",le=\"0.025\"} 1\n",
           "causeway_transfer_seconds_count{direction=\"down\"} 0\n",
           "causeway_merge_seconds_count 0\n",
           "process_start_time_seconds 10\n",
           "process_resident_memory_bytes 20\n",
           "process_cpu_seconds_total 30\n",
       }) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST(MetricsText, NamesAndTypesAreThoseOfPrometheusConventions) {
  std::istringstream lines(Text(Snapshot()));
  std::set<std::string> families, series;
  std::string line, family, type;
  const std::regex name_pattern("(causeway|process)_[a-z0-9_]+");
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    std::string hash, word;
    words >> hash >> word;
    if (hash == "#") {
      words >> family;
      if (word == "TYPE") {
        words >> type;
        EXPECT_TRUE(families.insert(family).second) << family << " comes twice";
        EXPECT_TRUE(std::regex_match(family, name_pattern)) << family;
        EXPECT_EQ(type == "counter", family.ends_with("_total")) << family;
      } else {
        EXPECT_FALSE(std::string(std::istreambuf_iterator<char>(words), {}).empty()) << family << " has no help";
      }
      continue;
    }
    EXPECT_TRUE(series.insert(line.substr(0, line.rfind(' '))).second) << line << " comes twice";
    EXPECT_TRUE(line.starts_with(family)) << line;
  }
  EXPECT_GT(families.size(), 35u);
}

TEST(MetricsText, LabelsAreEscaped) {
  StatusSnapshot snapshot = Snapshot();
  snapshot.sites[0].name = "a\"b\\c\nd";
  EXPECT_THAT(Text(snapshot), HasSubstr("{site=\"a\\\"b\\\\c\\nd\"}"));
}

TEST(MetricsText, ASiteThatIsGoneKeepsItsCountersAndItsState) {
  StatusSnapshot snapshot = Snapshot();
  snapshot.sites[0].state = core::SiteState::kGone;
  const std::string text = Text(snapshot);
  EXPECT_THAT(text, HasSubstr("causeway_site_up_bytes_total{site=\"datacenter-00\"}"));
  EXPECT_THAT(text, HasSubstr("causeway_site_state{site=\"datacenter-00\",state=\"gone\"} 1\n"));
  for (const char* gauge : {"causeway_site_loss", "causeway_site_utilization_ratio", "causeway_site_contributing"}) {
    EXPECT_THAT(text, Not(HasSubstr(std::string(gauge) + "{site=\"datacenter-00\"}"))) << gauge;
    EXPECT_THAT(text, HasSubstr(std::string(gauge) + "{site=\"datacenter-01\"}")) << gauge;
  }
}

TEST(MetricsText, WhatIsNotKnownStaysOut) {
  StatusSnapshot snapshot;
  snapshot.sites = {{.name = "eu", .state = core::SiteState::kTraining}};  // has not reported
  const std::string text = Text(snapshot);
  for (const char* name :
       {"causeway_site_loss{", "causeway_site_utilization_ratio{", "causeway_eval_loss", "causeway_certificate",
        "causeway_disk_free", "causeway_alarm", "causeway_site_cosine_ratio{", "causeway_fragment_outer"}) {
    EXPECT_THAT(text, Not(HasSubstr(name)));
  }
}

}  // namespace
}  // namespace causeway::server
