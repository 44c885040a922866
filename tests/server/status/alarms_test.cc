// Each alarm: on for its reason, off without it.
#include "server/status/alarms.h"

#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace causeway::server {
namespace {

using core::SiteState;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Three sites that train, and nothing to complain about.
StatusSnapshot Healthy() {
  StatusSnapshot snapshot{.state = "training",
                          .eval_loss_start = 9.0,
                          .eval_loss_latest = 3.0,
                          .unix_ms = 1'000'000'000,
                          .min_sites = 3,
                          .min_quorum = 2};
  for (const char* name : {"asia", "eu", "us"}) {
    SiteStatus& site = snapshot.sites.emplace_back();
    site.name = name;
    site.state = SiteState::kTraining;
    site.residual = ResidualTrend{.now = 1, .before = 0.9, .largest_ago = 1.2};
  }
  snapshot.host = {
      .disk_free_bytes = 10'000, .disk_reserved_bytes = 1'000, .certificate_expires_unix_s = 1'000'000 + 86'400 * 31};
  return snapshot;
}

std::vector<std::string> NamesOf(const std::vector<Alarm>& alarms) {
  std::vector<std::string> names;
  for (const Alarm& alarm : alarms) names.push_back(alarm.name);
  return names;
}

// The alarm of that name; ends the test's step if it is not there alone.
Alarm TheAlarm(const StatusSnapshot& snapshot) {
  const std::vector<Alarm> alarms = FindAlarms(snapshot);
  EXPECT_THAT(alarms, SizeIs(1));
  if (alarms.empty()) return {};
  EXPECT_THAT(kAlarmNames, ::testing::Contains(alarms[0].name));
  EXPECT_FALSE(alarms[0].text.empty());
  return alarms[0];
}

TEST(Alarms, AHealthyRunHasNone) { EXPECT_THAT(FindAlarms(Healthy()), IsEmpty()); }

TEST(Alarms, ASiteThatTrainsAloneWhileOthersAreGone) {
  StatusSnapshot snapshot = Healthy();
  snapshot.min_quorum = 1;
  snapshot.sites[0].state = snapshot.sites[2].state = SiteState::kGone;
  const Alarm alarm = TheAlarm(snapshot);
  EXPECT_EQ(alarm.name, "site_alone");
  EXPECT_EQ(alarm.site, "eu");
  EXPECT_EQ(alarm.severity, Severity::kWarning);
  EXPECT_THAT(alarm.text, HasSubstr("2 sites"));
}

TEST(Alarms, ASiteThatTrainsAloneThoughMoreWereToCome) {
  StatusSnapshot snapshot = Healthy();
  snapshot.min_quorum = 1;
  snapshot.sites.resize(1);
  EXPECT_EQ(TheAlarm(snapshot).name, "site_alone");
  snapshot.min_sites = 1;
  EXPECT_THAT(FindAlarms(snapshot), IsEmpty()) << "a run of one site is meant so";
}

TEST(Alarms, ASiteWhoseLeaseEnded) {
  StatusSnapshot snapshot = Healthy();
  snapshot.sites[2].state = SiteState::kGone;
  snapshot.sites[2].reason = "not heard of for 1000 ms (lease_ms)";
  EXPECT_THAT(FindAlarms(snapshot), IsEmpty()) << "gone, but it took its leave";
  snapshot.sites[2].lost = true;
  const Alarm alarm = TheAlarm(snapshot);
  EXPECT_EQ(alarm.name, "site_gone");
  EXPECT_EQ(alarm.severity, Severity::kWarning);
  EXPECT_EQ(alarm.site, "us");
  EXPECT_THAT(alarm.text, HasSubstr("not heard of for 1000 ms"));
}

TEST(Alarms, EachLostSiteHasOneBesideThatTheLastTrainsAlone) {
  StatusSnapshot snapshot = Healthy();
  snapshot.min_quorum = 1;
  for (const int i : {0, 1}) snapshot.sites[i].state = SiteState::kGone, snapshot.sites[i].lost = true;
  EXPECT_THAT(NamesOf(FindAlarms(snapshot)), ElementsAre("site_alone", "site_gone", "site_gone"));
}

TEST(Alarms, NobodyIsMissedAtTheEndOfARun) {
  StatusSnapshot snapshot = Healthy();
  snapshot.sites[0].state = snapshot.sites[2].state = SiteState::kGone;
  snapshot.sites[0].lost = true;
  snapshot.finished = true;
  EXPECT_THAT(FindAlarms(snapshot), IsEmpty());
  snapshot.finished = false;
  snapshot.stopped = true;
  snapshot.state = "paused";
  EXPECT_THAT(FindAlarms(snapshot), IsEmpty());
}

TEST(Alarms, FewerActiveSitesThanARoundNeeds) {
  StatusSnapshot snapshot = Healthy();
  snapshot.state = "paused";
  snapshot.sites[0].state = snapshot.sites[2].state = SiteState::kGone;
  const Alarm alarm = TheAlarm(snapshot);
  EXPECT_EQ(alarm.name, "below_quorum");
  EXPECT_EQ(alarm.severity, Severity::kCritical);
  EXPECT_THAT(alarm.text, HasSubstr("1 site is active, 2 needed"));
}

TEST(Alarms, ARunThatWaitsForItsFirstSitesIsNotBelowQuorum) {
  StatusSnapshot snapshot = Healthy();
  snapshot.state = "waiting";
  snapshot.sites.clear();
  EXPECT_THAT(FindAlarms(snapshot), IsEmpty());
}

TEST(Alarms, ADigestThatIsNotTheCoordinators) {
  StatusSnapshot snapshot = Healthy();
  snapshot.sites[1].mismatches = {3, 4};
  snapshot.sites[1].mismatched_unix_ms = snapshot.unix_ms;
  const Alarm alarm = TheAlarm(snapshot);
  EXPECT_EQ(alarm.name, "digest_mismatch");
  EXPECT_EQ(alarm.severity, Severity::kCritical);
  EXPECT_EQ(alarm.site, "eu");
  EXPECT_EQ(alarm.fragment, 3);
}

TEST(Alarms, AMismatchThatIsMendedIsShownForAWhileWithoutAFragment) {
  StatusSnapshot snapshot = Healthy();
  snapshot.sites[1].mismatched_unix_ms = snapshot.unix_ms - 30'000;
  const Alarm alarm = TheAlarm(snapshot);
  EXPECT_EQ(alarm.name, "digest_mismatch");
  EXPECT_FALSE(alarm.fragment);
  EXPECT_THAT(alarm.text, HasSubstr("agrees again"));
}

TEST(Alarms, AResidualThatDoubledAndIsLargerThanEver) {
  StatusSnapshot snapshot = Healthy();
  snapshot.sites[2].residual = ResidualTrend{.now = 2.0, .before = 1.0, .largest_ago = 1.9};
  const Alarm alarm = TheAlarm(snapshot);
  EXPECT_EQ(alarm.name, "residual_growing");
  EXPECT_EQ(alarm.site, "us");
  snapshot.sites[2].residual = ResidualTrend{.now = 1.99, .before = 1.0, .largest_ago = 1.5};
  EXPECT_THAT(FindAlarms(snapshot), IsEmpty()) << "not doubled";
  snapshot.sites[2].residual = ResidualTrend{.now = 2.0, .before = 1.0, .largest_ago = 2.0};
  EXPECT_THAT(FindAlarms(snapshot), IsEmpty()) << "it was as large before";
  snapshot.sites[2].residual = ResidualTrend{};
  EXPECT_THAT(FindAlarms(snapshot), IsEmpty()) << "a codec that drops nothing";
}

TEST(Alarms, ADiskThatTakesSecondsToSyncIsSlow) {
  StatusSnapshot snapshot = Healthy();
  snapshot.syncs.slowest_s = 0.99;
  EXPECT_THAT(FindAlarms(snapshot), IsEmpty());
  snapshot.syncs.slowest_s = 4;
  EXPECT_EQ(TheAlarm(snapshot).name, "disk_slow");
  EXPECT_EQ(TheAlarm(snapshot).severity, Severity::kWarning);
  EXPECT_THAT(TheAlarm(snapshot).text, HasSubstr("took 4.0 s to make a commit durable"));
  snapshot.syncs.slowest_s = 10;
  EXPECT_EQ(TheAlarm(snapshot).severity, Severity::kCritical);
}

TEST(Alarms, DamageThatWasFoundIsToldWithItsCure) {
  StatusSnapshot snapshot = Healthy();
  snapshot.scrub.passes = 1;
  EXPECT_THAT(FindAlarms(snapshot), IsEmpty());
  snapshot.scrub.damages = {"a: is damaged at byte 7; do this", "b"};
  EXPECT_EQ(TheAlarm(snapshot).name, "damage_found");
  EXPECT_EQ(TheAlarm(snapshot).severity, Severity::kCritical);
  EXPECT_EQ(TheAlarm(snapshot).text, "a: is damaged at byte 7; do this (and 1 more)");
}

TEST(Alarms, ADiskThatFillsUpWarnsBeforeItIsCritical) {
  StatusSnapshot snapshot = Healthy();
  snapshot.host.disk_free_bytes = 2'000;
  EXPECT_THAT(FindAlarms(snapshot), IsEmpty());
  snapshot.host.disk_free_bytes = 1'999;
  EXPECT_EQ(TheAlarm(snapshot).name, "disk_low");
  EXPECT_EQ(TheAlarm(snapshot).severity, Severity::kWarning);
  snapshot.host.disk_free_bytes = 1'249;
  EXPECT_EQ(TheAlarm(snapshot).severity, Severity::kCritical);
  snapshot.host.disk_reserved_bytes = 0;
  EXPECT_THAT(FindAlarms(snapshot), IsEmpty()) << "the coordinator does not look at the disk";
}

TEST(Alarms, ACertificateThatEndsWarnsBeforeItIsCritical) {
  StatusSnapshot snapshot = Healthy();
  const int64_t now_s = snapshot.unix_ms / 1000;
  snapshot.host.certificate_expires_unix_s = now_s + 30 * 86'400;
  EXPECT_THAT(FindAlarms(snapshot), IsEmpty());
  snapshot.host.certificate_expires_unix_s = now_s + 30 * 86'400 - 1;
  EXPECT_EQ(TheAlarm(snapshot).name, "certificate_ending");
  EXPECT_EQ(TheAlarm(snapshot).severity, Severity::kWarning);
  snapshot.host.certificate_expires_unix_s = now_s + 3 * 86'400 - 1;
  EXPECT_EQ(TheAlarm(snapshot).severity, Severity::kCritical);
  snapshot.host.certificate_expires_unix_s = now_s - 1;
  EXPECT_THAT(TheAlarm(snapshot).text, HasSubstr("has ended"));
  snapshot.host.certificate_expires_unix_s.reset();
  EXPECT_THAT(FindAlarms(snapshot), IsEmpty()) << "without TLS";
}

TEST(Alarms, ASiteWhoseControlStreamIsBroken) {
  StatusSnapshot snapshot = Healthy();
  snapshot.sites[0].lease_s_left = 4.2;
  const Alarm alarm = TheAlarm(snapshot);
  EXPECT_EQ(alarm.name, "site_silent");
  EXPECT_EQ(alarm.site, "asia");
  EXPECT_THAT(alarm.text, HasSubstr("5 s"));
}

TEST(Alarms, ARunThatAnOperatorPaused) {
  StatusSnapshot snapshot = Healthy();
  snapshot.state = "paused";
  snapshot.paused = true;
  EXPECT_EQ(TheAlarm(snapshot).name, "run_paused");
}

TEST(Alarms, AnEvaluationLossThatIsWorseThanAtTheStart) {
  StatusSnapshot snapshot = Healthy();
  snapshot.eval_loss_latest = 9.0;
  EXPECT_THAT(FindAlarms(snapshot), IsEmpty());
  snapshot.eval_loss_latest = 9.1;
  EXPECT_EQ(TheAlarm(snapshot).name, "training_diverges");
  EXPECT_EQ(TheAlarm(snapshot).severity, Severity::kWarning);
  for (const double loss : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    snapshot.eval_loss_latest = loss;
    EXPECT_EQ(TheAlarm(snapshot).severity, Severity::kCritical);
  }
  snapshot.eval_loss_latest.reset();
  EXPECT_THAT(FindAlarms(snapshot), IsEmpty());
}

TEST(Alarms, TheWorstComeFirst) {
  StatusSnapshot snapshot = Healthy();
  snapshot.paused = true;
  snapshot.sites[0].lease_s_left = 1;
  snapshot.host.disk_free_bytes = 1'100;
  EXPECT_THAT(NamesOf(FindAlarms(snapshot)), ElementsAre("disk_low", "site_silent", "run_paused"));
}

TEST(AlarmBook, AnAlarmIsOnSinceItWasFirstSeen) {
  AlarmBook book;
  std::vector<Alarm> alarms = {{.name = "disk_low", .severity = Severity::kWarning}};
  book.Note(alarms, 100);
  EXPECT_EQ(alarms[0].since_unix_ms, 100);
  alarms = {{.name = "disk_low", .severity = Severity::kCritical}, {.name = "site_silent", .site = "eu"}};
  book.Note(alarms, 200);
  EXPECT_EQ(alarms[0].since_unix_ms, 100);
  EXPECT_EQ(alarms[1].since_unix_ms, 200);
  alarms = {{.name = "site_silent", .site = "us"}};
  book.Note(alarms, 300);
  EXPECT_EQ(alarms[0].since_unix_ms, 300) << "another site's";
  alarms = {{.name = "disk_low"}};
  book.Note(alarms, 400);
  EXPECT_EQ(alarms[0].since_unix_ms, 400) << "it was off in between";
}

}  // namespace
}  // namespace causeway::server
