// Each alarm: on for its reason, off without it.
#include "server/status/alarms.h"

#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <memory>
#include <utility>

namespace causeway::server {
namespace {

using core::SiteState;
using enum Severity;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
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

void Gone(StatusSnapshot& snapshot, int site) { snapshot.sites[site].state = SiteState::kGone; }

struct Expected {
  Severity severity = kWarning;
  std::string name;
  std::optional<core::SiteId> site = {};
  ::testing::Matcher<std::string> text = Not(IsEmpty());
  std::optional<core::FragmentId> fragment = {};
};

struct AlarmCase {
  std::string when;
  std::function<void(StatusSnapshot&)> change;  // of a healthy run
  Expected alarm = {};                          // the only one; none is on if it has no name
};

void ExpectAlarms(const std::vector<AlarmCase>& cases) {
  for (const AlarmCase& one : cases) {
    SCOPED_TRACE(one.when);
    StatusSnapshot snapshot = Healthy();
    one.change(snapshot);
    const std::vector<Alarm> alarms = FindAlarms(snapshot);
    EXPECT_EQ(NamesOf(alarms), std::vector<std::string>(one.alarm.name.empty() ? 0 : 1, one.alarm.name));
    if (one.alarm.name.empty() || alarms.empty()) continue;
    EXPECT_THAT(kAlarmNames, ::testing::Contains(alarms[0].name));
    EXPECT_EQ(alarms[0].severity, one.alarm.severity);
    EXPECT_EQ(alarms[0].site, one.alarm.site);
    EXPECT_EQ(alarms[0].fragment, one.alarm.fragment);
    EXPECT_THAT(alarms[0].text, one.alarm.text);
  }
}

TEST(Alarms, AHealthyRunHasNone) { EXPECT_THAT(FindAlarms(Healthy()), IsEmpty()); }

TEST(Alarms, SitesThatAreMissedAreToldOfUntilTheRunEnds) {
  const auto alone = [](auto& run) { Gone(run, 0), Gone(run, 2), run.min_quorum = 1; };
  const auto of_one = [](auto& run) { run.sites.resize(1), run.min_quorum = 1; };
  const auto left = [](auto& run) { Gone(run, 2), run.sites[2].reason = "not heard of for 1000 ms (lease_ms)"; };
  const auto lost = [](auto& run) { Gone(run, 0), Gone(run, 2), run.sites[0].lost = true; };
  ExpectAlarms({
      {"one trains alone while others are gone", alone, {kWarning, "site_alone", "eu", HasSubstr("2 sites")}},
      {"one trains alone though more were to come", of_one, {kWarning, "site_alone", "asia"}},
      {"a run of one site is meant so", [&](auto& run) { of_one(run), run.min_sites = 1; }},
      {"one is gone, but it took its leave", left},
      {"the lease of one ended",
       [&](auto& run) { left(run), run.sites[2].lost = true; },
       {kWarning, "site_gone", "us", HasSubstr("not heard of for 1000 ms")}},
      {"a lost site of a run that is finished", [&](auto& run) { lost(run), run.finished = true; }},
      {"a lost site of a run that was stopped",
       [&](auto& run) { lost(run), run.stopped = true, run.state = "paused"; }},
      {"fewer are active than a round needs",
       [](auto& run) { Gone(run, 0), Gone(run, 2), run.state = "paused"; },
       {kCritical, "below_quorum", {}, HasSubstr("1 site is active, 2 needed")}},
      {"the run waits for its first sites", [](auto& run) { run.sites.clear(), run.state = "waiting"; }},
  });
}

TEST(Alarms, EachLostSiteHasOneBesideThatTheLastTrainsAlone) {
  StatusSnapshot snapshot = Healthy();
  snapshot.min_quorum = 1;
  for (const int i : {0, 1}) Gone(snapshot, i), snapshot.sites[i].lost = true;
  EXPECT_THAT(NamesOf(FindAlarms(snapshot)), ElementsAre("site_alone", "site_gone", "site_gone"));
}

TEST(Alarms, DigestsOfSeveralSitesThatAreNotTheCoordinatorsAreCritical) {
  StatusSnapshot snapshot = Healthy();
  for (const int i : {0, 1}) snapshot.sites[i].mismatched_unix_ms = snapshot.unix_ms;
  const std::vector<Alarm> alarms = FindAlarms(snapshot);
  ASSERT_THAT(NamesOf(alarms), ElementsAre("digest_mismatch", "digest_mismatch"));
  EXPECT_EQ(alarms[0].severity, Severity::kCritical);
}

TEST(Alarms, ASiteOfTheRunHasOneForWhatIsWrongWithIt) {
  const auto mismatched = [](int64_t ago_ms, std::vector<core::FragmentId> now) {
    return [=](auto& run) { run.sites[1].mismatched_unix_ms = run.unix_ms - ago_ms, run.sites[1].mismatches = now; };
  };
  const auto trend = [](ResidualTrend residual) { return [=](auto& run) { run.sites[2].residual = residual; }; };
  ExpectAlarms({
      {"its digest is not the coordinator's",
       mismatched(0, {3, 4}),
       {kWarning, "digest_mismatch", "eu", Not(IsEmpty()), 3}},
      {"a mismatch that is mended is shown for a while, without a fragment",
       mismatched(30'000, {}),
       {kWarning, "digest_mismatch", "eu", HasSubstr("agrees again")}},
      {"its residual doubled and is larger than ever",
       trend({.now = 2.0, .before = 1.0, .largest_ago = 1.9}),
       {kWarning, "residual_growing", "us"}},
      {"its residual has not doubled", trend({.now = 1.99, .before = 1.0, .largest_ago = 1.5})},
      {"its residual was as large before", trend({.now = 2.0, .before = 1.0, .largest_ago = 2.0})},
      {"its codec drops nothing", trend({})},
      {"its control stream is broken",
       [](auto& run) { run.sites[0].lease_s_left = 4.2; },
       {kWarning, "site_silent", "asia", HasSubstr("5 s")}},
  });
}

TEST(Alarms, TheCoordinatorsMachineWarnsBeforeItIsCritical) {
  const auto slowest = [](double slowest_s) { return [=](auto& run) { run.syncs.slowest_s = slowest_s; }; };
  const auto disk_free = [](int64_t bytes) { return [=](auto& run) { run.host.disk_free_bytes = bytes; }; };
  const auto files_free = [](int64_t files) { return [=](auto& run) { run.host.disk_free_files = files; }; };
  const auto ends_in = [](int64_t left_s) {
    return [=](auto& run) { run.host.certificate_expires_unix_s = run.unix_ms / 1000 + left_s; };
  };
  const auto damages = [](std::vector<std::string> found) {
    return [=](auto& run) { run.scrub.passes = 1, run.scrub.damages = found; };
  };
  constexpr int64_t kDayS = 86'400;
  ExpectAlarms({
      {"a sync below a second", slowest(0.99)},
      {"a disk that takes seconds to sync",
       slowest(4),
       {kWarning, "disk_slow", {}, HasSubstr("took 4.0 s to make a commit durable")}},
      {"a disk that takes ten seconds", slowest(10), {kCritical, "disk_slow"}},
      {"no damage was found", damages({})},
      {"damage is named with its cure",
       damages({"a: is damaged at byte 7; do this", "b"}),
       {kCritical, "damage_found", {}, "a: is damaged at byte 7; do this (and 1 more)"}},
      {"twice of what is reserved is free", disk_free(2'000)},
      {"less than twice is free", disk_free(1'999), {kWarning, "disk_low"}},
      {"less than 1.25 times is free", disk_free(1'249), {kCritical, "disk_low"}},
      {"a thousand files can still be made", files_free(1'000)},
      {"fewer than a thousand files can be made",
       files_free(999),
       {kWarning, "disk_low", {}, HasSubstr("takes 999 more files (inodes)")}},
      {"fewer than a hundred files can be made", files_free(99), {kCritical, "disk_low"}},
      {"the coordinator does not look at the disk",
       [&](auto& run) { disk_free(1'249)(run), run.host.disk_reserved_bytes = 0; }},
      {"a certificate that holds for 30 days", ends_in(30 * kDayS)},
      {"a certificate that holds for less than 30 days", ends_in(30 * kDayS - 1), {kWarning, "certificate_ending"}},
      {"a certificate that holds for less than 3 days", ends_in(3 * kDayS - 1), {kCritical, "certificate_ending"}},
      {"a certificate that has ended", ends_in(-1), {kCritical, "certificate_ending", {}, HasSubstr("has ended")}},
      {"without TLS", [](auto& run) { run.host.certificate_expires_unix_s.reset(); }},
  });
}

// A round of fragment 0, to which the sites contributed at these times.
std::shared_ptr<const LoggedRound> RoundOf(core::Version version, int64_t asia_ms, int64_t eu_ms, int64_t us_ms) {
  LoggedRound round{.fragment = 0, .version = version};
  for (const auto& [site, ms] : {std::pair("asia", asia_ms), std::pair("eu", eu_ms), std::pair("us", us_ms)}) {
    round.arrivals.push_back({.site = site, .begun_unix_ms = ms - 1, .arrived_unix_ms = ms});
  }
  round.decided_unix_ms = std::max({asia_ms, eu_ms, us_ms}) + 1;
  return std::make_shared<const LoggedRound>(std::move(round));
}

// Sixteen rounds of a second, to which "us" comes `late_ms` after the others, in all but `others_last` of them.
void Late(StatusSnapshot& run, int64_t late_ms, int others_last = 0) {
  run.fragments.resize(1);
  for (core::Version version = 1; version <= 16; ++version) {
    const int64_t at_ms = 1000 * version;
    run.rounds.push_back(version <= others_last ? RoundOf(version, at_ms, at_ms + 900, at_ms)
                                                : RoundOf(version, at_ms, at_ms + 1, at_ms + late_ms));
  }
}

TEST(Alarms, ASiteForWhichTheOthersWaitHasOne) {
  ExpectAlarms({
      {"one is last by most of a round",
       [](auto& run) { Late(run, 800); },
       {kWarning, "straggler", "us", HasSubstr("last in 16 of 16 rounds, for 85 % of the time")}},
      {"one is last by little", [](auto& run) { Late(run, 100); }},
      {"one is last in many rounds, and others in some", [](auto& run) { Late(run, 800, 5); }},
      {"without rounds enough", [](auto& run) { Late(run, 800), run.rounds.pop_back(); }},
      {"in quorum mode none waits", [](auto& run) { Late(run, 800), run.mode = core::SyncMode::kQuorum; }},
  });
}

TEST(Alarms, ASiteWhoseLossIsApartHasOneWithBoth) {
  const auto apart = [](auto& run) {
    auto progress = std::make_shared<core::Progress>();
    progress->loss = 0.03;
    run.sites[2].progress = progress;
    run.sites[2].loss_of_others = 1.8;
  };
  ExpectAlarms({{"its loss is apart",
                 apart,
                 {kWarning, "loss_outlier", "us", HasSubstr("the loss of us is 0.03, that of the others 1.8")}}});
}

TEST(Alarms, AShardThatIsAwayHasOneAndItsFragmentsWaitForASiteThatIsGone) {
  const auto away = [](auto& run) { run.shard = {0, 2}, run.others.away = {{1, 7.0}}, run.state = "paused"; };
  ExpectAlarms({
      {"a shard is away",
       away,
       {kCritical, "shard_gone", {}, HasSubstr("shard 1 has not been heard of for 7 s: no round of its fragments")}},
      {"of a run that is done", [&](auto& run) { away(run), run.state = "done"; }},
  });
  StatusSnapshot snapshot = Healthy();
  away(snapshot);
  Gone(snapshot, 2), snapshot.sites[2].lost = true;
  const std::vector<Alarm> alarms = FindAlarms(snapshot);
  EXPECT_THAT(NamesOf(alarms), ElementsAre("shard_gone", "site_gone"));
  EXPECT_THAT(alarms[1].text, Not(HasSubstr("no round waits")));
}

TEST(Alarms, AStandbyThatIsBehindOrNotThereHasOne) {
  const auto with = [](std::vector<StandbyStatus> standbys) {
    return [standbys](auto& run) { run.others.standbys = standbys; };
  };
  const StandbyStatus near{.address = "b:1", .connected = true, .whole = true, .seconds_behind = 0.5};
  StandbyStatus far = near, first = near, away = near, unfit = near;
  unfit.unfit = "no room";
  far.seconds_behind = 12, far.bytes_behind = 2'000'000'000;
  first.whole = false;
  away.connected = false, away.address = "c:1";
  ExpectAlarms({
      {"one is near", with({near})},
      {"one is near, another away", with({near, away})},
      {"far", with({far}), {kWarning, "standby_behind", {}, HasSubstr("b:1 is 12 s behind, with 2.00 GB to be sent")}},
      {"its first copy",
       with({first}),
       {kWarning, "standby_behind", {}, HasSubstr("first copy of the standby at b:1")}},
      {"away", with({away}), {kWarning, "no_standby", {}, HasSubstr("no standby could lead (c:1 is not connected)")}},
      {"unfit", with({unfit}), {kWarning, "no_standby", {}, HasSubstr("(b:1 could not lead: no room)")}},
      {"away, of a run that is done", [&](auto& run) { with({away})(run), run.state = "done"; }},
      {"of a standby", [&](auto& run) { with({away})(run), run.others.standby_of = "a:1"; }},
  });
}

TEST(Alarms, TransfersThatStallAndCheckpointsThatFailHaveOne) {
  const auto reports = [](StatusSnapshot& run, auto change) {
    auto progress = std::make_shared<core::Progress>();
    change(*progress);
    run.sites[1].progress = progress;
  };
  ExpectAlarms({
      {"a transfer moves nothing",
       [&](auto& run) { reports(run, [](core::Progress& p) { p.link.silent_s = 7; }); },
       {kWarning, "transfer_stalled", "eu", HasSubstr("has moved no byte for 7 s")}},
      {"a connection died a moment ago",
       [&](auto& run) {
         reports(run, [](core::Progress& p) { p.link.redials = 3; });
         run.sites[1].redialled_unix_ms = run.unix_ms;
       },
       {kWarning, "transfer_stalled", "eu", HasSubstr("3 were made anew")}},
      {"some did long ago", [&](auto& run) { reports(run, [](core::Progress& p) { p.link.redials = 3; }); }},
      {"a checkpoint was not saved",
       [&](auto& run) { reports(run, [](core::Progress& p) { p.checkpoint_error = "No space left"; }); },
       {kWarning, "no_checkpoint", "eu", HasSubstr("without a checkpoint: No space left")}},
  });
}

TEST(Alarms, AStateDirectoryThatIsGoneHasOne) {
  ExpectAlarms({{"it is gone",
                 [](auto& run) { run.host.missing_dir = "/var/lib/causeway"; },
                 {kCritical, "damage_found", {}, HasSubstr("the state directory /var/lib/causeway is gone")}}});
}

TEST(Alarms, ALogThatIsNotReadHasOne) {
  ExpectAlarms({
      {"for a while",
       [](auto& run) { run.host.log = {.stuck_s = 6, .waiting = 9, .dropped = 5}; },
       {kWarning, "log_stuck", {}, HasSubstr("not been read for 6 s, and 5 lines were dropped")}},
      {"for a moment", [](auto& run) { run.host.log = {.stuck_s = 1}; }},
      {"long ago", [](auto& run) { run.host.log = {.dropped = 5}; }},
  });
}

TEST(Alarms, ASiteForWhichAnOpenRoundStandsHasOne) {
  ExpectAlarms({{"far longer than usual",
                 [](auto& run) {
                   run.outliers = {
                       {.kind = core::Outlier::Kind::kAwaited, .site = "eu", .fragment = 2, .text = "the others wait"}};
                 },
                 {kWarning, "round_stands", "eu", HasSubstr("the others wait; see its log"), 2}}});
}

TEST(Alarms, ACredentialsFileThatCannotBeTakenAsItIsNowHasOne) {
  ExpectAlarms({{"two",
                 [](auto& run) {
                   run.host.file_faults = {"--site_tokens=/t:2: wrong", "--tls_cert=/c: gone"};
                 },
                 {kWarning,
                  "file_refused",
                  {},
                  HasSubstr("--site_tokens=/t:2: wrong; --tls_cert=/c: gone; the contents of before stay in use")}}});
}

TEST(Alarms, AnEndOfTheStateThatWasLostAndMadeGoodHasOne) {
  StatusSnapshot snapshot = Healthy();
  snapshot.completed = "the end of the journal was lost: it held versions 5; …";
  const auto alarms = FindAlarms(snapshot);
  ASSERT_THAT(alarms, SizeIs(1));
  EXPECT_EQ(alarms[0].name, "history_lost");
  EXPECT_THAT(alarms[0].text, HasSubstr("it held versions 5"));
  snapshot.strangers = {{"a", "history_lost", "the site holds version 9"}};
  EXPECT_THAT(FindAlarms(snapshot), SizeIs(1)) << "what stops the run comes first";
}

TEST(Alarms, ALongContributionHasOneThatSaysWhatBecameOfIt) {
  using enum core::Outlier::Kind;
  const auto outlier = [](core::Outlier::Kind kind) {
    return [kind](auto& run) { run.outliers = {{kind, "eu", 0, 10, "norm 1e9 was scaled by 0.1"}}; };
  };
  ExpectAlarms({
      {"scaled", outlier(kScaled), {kWarning, "outlier_merged", "eu", HasSubstr("scaled by 0.1"), 0}},
      {"broken", outlier(kBroken), {kCritical, "outlier_merged", "eu", HasSubstr("at the usual length alone"), 0}},
      {"of two", outlier(kApart), {kWarning, "lengths_apart", "eu", HasSubstr("another lr?"), 0}},
  });
}

TEST(Alarms, TheLastSitesInQuarantineNameTheCommandThatFreesAll) {
  const auto quarantine = [](size_t sites) {
    return [sites](auto& run) {
      for (size_t i = 0; i < sites; ++i) run.sites[i].quarantined = true, run.sites[i].refusals = 3;
    };
  };
  const auto text_of = [&](size_t sites) {
    StatusSnapshot snapshot = Healthy();
    quarantine(sites)(snapshot);
    return FindAlarms(snapshot).at(0).text;
  };
  EXPECT_THAT(text_of(1), HasSubstr("; causewayctl release --site="));
  EXPECT_THAT(text_of(Healthy().sites.size()), HasSubstr("; no round closes: causewayctl release --all"));
}

TEST(Alarms, AnOutlierHasOneUntilTheModelEvaluatesAsBefore) {
  const auto outlier = [](auto& run) { run.outliers = {{core::Outlier::Kind::kWhole, "eu", 0, 10, "norm 1e9"}}; };
  const Expected on{kCritical, "outlier_merged", "eu", HasSubstr("rollback"), 0};
  ExpectAlarms({
      {"without an evaluation", outlier, on},
      {"the loss is still higher",
       [&](auto& run) {
         outlier(run), run.eval_history = {{1, 9, 3.0}, {2, 11, 9.0}, {3, 40, 3.2}};
       },
       on},
      {"it is back",
       [&](auto& run) {
         outlier(run), run.eval_history = {{1, 9, 3.0}, {2, 11, 9.0}, {3, 40, 3.01}};
       }},
  });
}

TEST(Alarms, TheRunHasOneWhileItIsPausedOrDiverges) {
  const auto loss = [](std::optional<double> latest) { return [=](auto& run) { run.eval_loss_latest = latest; }; };
  ExpectAlarms({
      {"an operator paused it", [](auto& run) { run.paused = true, run.state = "paused"; }, {kWarning, "run_paused"}},
      {"the evaluation loss is that of the start", loss(9.0)},
      {"the evaluation loss is worse than at the start", loss(9.1), {kWarning, "training_diverges"}},
      {"the evaluation loss is no number", loss(std::nan("")), {kCritical, "training_diverges"}},
      {"the evaluation loss is infinite",
       loss(std::numeric_limits<double>::infinity()),
       {kCritical, "training_diverges"}},
      {"there is no evaluation loss", loss({})},
  });
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
