// Figures that follow from the snapshots before.
#include <gmock/gmock-matchers.h>
#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <functional>

#include "server/status/round_log.h"
#include "server/status/status_board.h"
#include "server/status/thinned_series.h"

namespace causeway::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Optional;
using ::testing::SizeIs;

// A run of one site, a snapshot each quarter of a second.
class StatusHistoryTest : public ::testing::Test {
 protected:
  StatusSnapshot Note(const std::function<void(StatusSnapshot&, core::Progress&)>& change = nullptr) {
    now_ms_ += 250;
    StatusSnapshot snapshot;
    snapshot.unix_ms = 1'000'000 + now_ms_;
    snapshot.uptime_s = static_cast<double>(now_ms_) / 1000;
    snapshot.sites = {{.name = "eu", .state = core::SiteState::kTraining, .joined_s = snapshot.uptime_s}};
    core::Progress progress;
    if (change) change(snapshot, progress);
    snapshot.sites[0].progress = std::make_shared<core::Progress>(progress);
    history_.Note(snapshot);
    return snapshot;
  }

  StatusSnapshot NoteResidual(int64_t merged, double norm) {
    return Note([&](StatusSnapshot& snapshot, core::Progress& progress) {
      snapshot.fragments.resize(2);
      progress.contributions_merged = merged;
      progress.residual_norm = norm;
      snapshot.sites[0].sent_norm = 1;
    });
  }

  StatusHistory history_;
  int64_t now_ms_ = 0;
};

TEST_F(StatusHistoryTest, PeakCountsWhatCameBeforeTheFirstLook) {
  StatusSnapshot snapshot;
  for (int i = 0; i < 8; ++i) {
    snapshot = Note([](StatusSnapshot& status, core::Progress&) { status.sites[0].up_bytes = 5000; });
  }
  EXPECT_DOUBLE_EQ(snapshot.sites[0].up_rate.peak, 5000);
}

TEST_F(StatusHistoryTest, PeakCountsWhatCameBeforeTheFirstLookHoweverShortlyItJoinedBeforeThat) {
  StatusSnapshot snapshot;
  for (int i = 0; i < 8; ++i) {
    snapshot = Note([i](StatusSnapshot& status, core::Progress&) {
      status.sites[0].joined_s = 0.1 + 0.25 * i;
      status.sites[0].up_bytes = 5500;
    });
  }
  EXPECT_DOUBLE_EQ(snapshot.sites[0].up_rate.peak, 5000);  // in 1.1 s
}

TEST_F(StatusHistoryTest, MeanIsOfTheWholeStayAndPeakOfAnySecond) {
  int64_t bytes = 0;
  const auto at = [&bytes](StatusSnapshot& snapshot, core::Progress&) {
    snapshot.sites[0].up_bytes = bytes;
    snapshot.sites[0].down_bytes = 2 * bytes;
  };
  for (int i = 0; i < 8; ++i) Note(at);
  for (int i = 0; i < 2; ++i) {  // a burst of half a second, which spreads over a second's window
    bytes += 500;
    Note(at);
  }
  StatusSnapshot snapshot;
  for (int i = 0; i < 10; ++i) snapshot = Note(at);
  const SiteStatus& site = snapshot.sites[0];
  EXPECT_DOUBLE_EQ(site.up_rate.peak, 1000);
  EXPECT_DOUBLE_EQ(site.down_rate.peak, 2000);
  EXPECT_DOUBLE_EQ(site.up_rate.mean, 200);  // 1,000 bytes in 5 s
}

TEST_F(StatusHistoryTest, CountsNeverFallThoughASiteGoesOnFromAnEarlierStep) {
  SiteCounts counts;
  const auto report = [&](int64_t step, double compute_s) {
    counts = Note([&](StatusSnapshot&, core::Progress& progress) {
               progress = {.step = step, .tokens = 10 * step, .compute_s = compute_s, .wall_s = compute_s};
             })
                 .sites[0]
                 .counts;
  };
  Note();
  report(1000, 50);  // a site that was there before this life of the coordinator
  EXPECT_EQ(counts.steps, 0);
  report(1004, 52);
  report(980, 1);  // its next process, from a checkpoint
  report(983, 2.5);
  EXPECT_EQ(counts.steps, 4 + 3);
  EXPECT_EQ(counts.tokens, 10 * (4 + 3));
  EXPECT_EQ(counts.compute_s, 2 + 1 + 1.5);
}

TEST_F(StatusHistoryTest, RatesOfASiteThatIsGoneStandStill) {
  const auto trains = [](StatusSnapshot& snapshot, core::Progress&) { snapshot.sites[0].up_bytes = 1000; };
  const double mean = Note(trains).sites[0].up_rate.mean;
  const StatusSnapshot later = Note([](StatusSnapshot& snapshot, core::Progress&) {
    snapshot.sites[0].up_bytes = 1000;
    snapshot.sites[0].state = core::SiteState::kGone;
  });
  EXPECT_GT(mean, 0);
  EXPECT_EQ(later.sites[0].up_rate.mean, mean);
}

TEST_F(StatusHistoryTest, EachReportOfALossIsAPoint) {
  Note([](StatusSnapshot&, core::Progress& progress) { progress.loss = 5; });
  Note();  // no loss
  const StatusSnapshot snapshot = Note([](StatusSnapshot&, core::Progress& progress) { progress.loss = 4; });
  ASSERT_THAT(snapshot.sites[0].loss_history, SizeIs(2));
  EXPECT_EQ(snapshot.sites[0].loss_history[0].unix_ms, 1'000'250);
  EXPECT_EQ(snapshot.sites[0].loss_history[1].loss, 4);
}

TEST_F(StatusHistoryTest, ALossIsApartAfterThreeReportsAndOnlyBesideTwoOthers) {
  const auto report = [this](double loss, const std::vector<double>& others) {
    return Note([&](StatusSnapshot& snapshot, core::Progress& progress) {
             progress.step = 1;
             progress.loss = loss;
             for (const double other : others) {
               auto of_other = std::make_shared<core::Progress>(progress);
               of_other->loss = other;
               SiteStatus& site = snapshot.sites.emplace_back();
               site.name = std::to_string(other);
               site.state = core::SiteState::kTraining;
               site.progress = of_other;
             }
           })
        .sites[0]
        .loss_of_others;
  };
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(report(0.03, {1.7, 1.8, 1.9}));
  EXPECT_EQ(report(0.03, {1.7, 1.8, 1.9}), 1.8);
  EXPECT_FALSE(report(1.6, {1.7, 1.8, 1.9})) << "within six deviations";
  EXPECT_FALSE(report(0.03, {1.7, 1.8, 1.9})) << "three in a row again";
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(report(0.03, {1.8})) << "nothing says which of two is apart";
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(report(1.5, {1.8, 1.8})) << "losses of equal others differ, too";
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(report(3, {1.8, 1.8}));
  EXPECT_EQ(report(3, {1.8, 1.8}), 1.8);
}

TEST_F(StatusHistoryTest, TheSameReportIsNotAPointTwice) {
  StatusSnapshot snapshot = Note([](StatusSnapshot&, core::Progress& progress) { progress.loss = 5; });
  history_.Note(snapshot);
  EXPECT_THAT(snapshot.sites[0].loss_history, SizeIs(1));
}

TEST_F(StatusHistoryTest, AnEvaluationIsAPointAtTheVersionThatAllFragmentsHad) {
  const auto evaluated = [](core::Version first, core::Version second, double loss) {
    return [=](StatusSnapshot& snapshot, core::Progress&) {
      snapshot.eval_loss_versions = {first, second};
      snapshot.eval_loss_latest = loss;
    };
  };
  Note(evaluated(1, 1, 6));
  Note(evaluated(1, 1, 6));
  const StatusSnapshot snapshot = Note(evaluated(3, 2, 5));
  ASSERT_THAT(snapshot.eval_history, SizeIs(2));
  EXPECT_EQ(snapshot.eval_history[1].version, 2);
  EXPECT_EQ(snapshot.eval_history[1].loss, 5);
}

TEST_F(StatusHistoryTest, AResidualHasATrendAfterElevenRoundsOfAllFragments) {
  StatusSnapshot snapshot;
  for (int round = 1; round <= 11; ++round) snapshot = NoteResidual(2 * round, round == 1 ? 7 : 1);
  EXPECT_FALSE(snapshot.sites[0].residual);
  snapshot = NoteResidual(2 * 12, 3);
  ASSERT_TRUE(snapshot.sites[0].residual);
  EXPECT_EQ(snapshot.sites[0].residual->now, 3);
  EXPECT_EQ(snapshot.sites[0].residual->before, 1);
  EXPECT_EQ(snapshot.sites[0].residual->largest_ago, 7);
}

TEST_F(StatusHistoryTest, ASiteThatBeginsAnewHasNoTrendOfTheOneBefore) {
  for (int round = 1; round <= 13; ++round) NoteResidual(2 * round, 1);
  EXPECT_FALSE(NoteResidual(0, 1).sites[0].residual);
}

StatusSnapshot WithDigest(core::Version version, uint64_t digest) {
  StatusSnapshot snapshot;
  FragmentStatus& fragment = snapshot.fragments.emplace_back();
  fragment.id = 0;
  fragment.committed = {7, 0x77};
  RoundLog log;
  log.Decided(0, 6, "", 1);
  log.Merged(0, {6, 0x66}, 2);
  snapshot.rounds = log.rounds();
  core::Progress progress;
  progress.digests[0] = {version, digest};
  snapshot.sites = {{.name = "eu", .progress = std::make_shared<core::Progress>(progress)}};
  FindMismatches(snapshot);
  return snapshot;
}

TEST(FindMismatches, ComparesDigestsOfTheSameVersionAlone) {
  EXPECT_THAT(WithDigest(7, 0x77).sites[0].mismatches, IsEmpty());
  EXPECT_THAT(WithDigest(7, 0x78).sites[0].mismatches, ElementsAre(0));
  EXPECT_THAT(WithDigest(6, 0x66).sites[0].mismatches, IsEmpty()) << "a version behind";
  EXPECT_THAT(WithDigest(6, 0x67).sites[0].mismatches, ElementsAre(0));
  EXPECT_THAT(WithDigest(5, 0x55).sites[0].mismatches, IsEmpty()) << "not known any more";
}

TEST_F(StatusHistoryTest, AMismatchIsRememberedForAMinute) {
  const auto with = [](uint64_t digest) {
    return [digest](StatusSnapshot& snapshot, core::Progress& progress) {
      snapshot.fragments = {{.id = 0, .committed = {1, 0xab}}};
      progress.digests[0] = {1, digest};
    };
  };
  EXPECT_TRUE(Note(with(0xac)).sites[0].mismatched_unix_ms);
  EXPECT_TRUE(Note(with(0xab)).sites[0].mismatched_unix_ms);
  now_ms_ += 60'000;
  EXPECT_FALSE(Note(with(0xab)).sites[0].mismatched_unix_ms);
}

// A series that stays small and still spans the whole run.

TEST(ThinnedSeries, KeepsEverythingWhileThereIsRoom) {
  ThinnedSeries<int> series(4);
  for (int i = 0; i < 4; ++i) series.Add(i);
  EXPECT_THAT(series.points(), ElementsAre(0, 1, 2, 3));
}

TEST(ThinnedSeries, HalvesWhenItIsFullAndKeepsTheFirstAndTheNewest) {
  ThinnedSeries<int> series(4);
  for (int i = 0; i < 5; ++i) series.Add(i);
  EXPECT_THAT(series.points(), ElementsAre(0, 2, 4));
  series.Add(5);
  EXPECT_THAT(series.points(), ElementsAre(0, 2, 4, 5));
  series.Add(6);
  series.Add(7);
  EXPECT_EQ(series.points().front(), 0);
  EXPECT_EQ(series.points().back(), 7);
}

TEST(ThinnedSeries, SpansManyOffersEvenlyWithinItsCapacity) {
  ThinnedSeries<int> series(100);
  for (int i = 0; i < 200'000; ++i) {
    series.Add(i);
    ASSERT_LE(series.points().size(), 100u);
  }
  const std::vector<int> points = series.points();
  EXPECT_GE(points.size(), 50u);
  EXPECT_EQ(points.front(), 0);
  EXPECT_EQ(points.back(), 199'999);
  const int stride = points[1] - points[0];
  for (size_t i = 1; i + 1 < points.size(); ++i) EXPECT_EQ(points[i] - points[i - 1], stride) << i;
}

TEST(EvenlyOf, TakesTheFirstTheLastAndAsManyAsAskedFor) {
  EXPECT_THAT(EvenlyOf(std::vector{0, 1, 2, 3, 4, 5, 6}, 3), ElementsAre(0, 3, 6));
  EXPECT_THAT(EvenlyOf(std::vector{0, 1}, 3), ElementsAre(0, 1));
}

// The events of a round, in the order in which a coordinator reports them.

TEST(RoundLog, ARoundIsToldFromItsFirstChunkToItsLastDownload) {
  RoundLog log;
  log.Begun(2, 5, "eu", 100);
  log.Begun(2, 5, "asia", 90);
  log.Arrived(2, 5, "eu", 100, 150);
  log.Arrived(2, 5, "asia", 90, 170);
  log.Decided(2, 5, "all 2 active sites have contributed", 171);
  log.Merged(2, {5, 0xab}, 180);
  EXPECT_THAT(log.Taken(2, 5, "eu", 0, 1, 181, 200), Optional(19));
  const LoggedRounds rounds = log.rounds();
  ASSERT_THAT(rounds, SizeIs(1));
  const LoggedRound& round = *rounds[0];
  EXPECT_EQ(round.fragment, 2);
  EXPECT_EQ(round.version, 5);
  EXPECT_THAT(round.first_unix_ms(), Optional(90));
  ASSERT_THAT(round.arrivals, SizeIs(2));
  EXPECT_EQ(round.arrivals[0].site, "eu");
  EXPECT_THAT(round.arrivals[0].arrived_unix_ms, Optional(150));
  EXPECT_THAT(round.decided_unix_ms, Optional(171));
  EXPECT_THAT(round.merged_unix_ms, Optional(180));
  EXPECT_THAT(round.digest, Optional(0xab));
  EXPECT_EQ(round.reason, "all 2 active sites have contributed");
  ASSERT_THAT(round.downloads, SizeIs(1));
  EXPECT_THAT(round.downloads[0].taken_unix_ms, Optional(200));
}

TEST(RoundLog, OpenRoundsComeLast) {
  RoundLog log;
  log.Begun(1, 1, "eu", 5);
  log.Decided(0, 1, "", 10);
  log.Decided(0, 2, "", 20);
  const LoggedRounds rounds = log.rounds();
  ASSERT_THAT(rounds, SizeIs(3));
  EXPECT_EQ(rounds[0]->version, 1);
  EXPECT_EQ(rounds[1]->version, 2);
  EXPECT_FALSE(rounds[2]->decided_unix_ms);
}

TEST(RoundLog, AContributionThatIsLateArrivesInTheNextRound) {
  RoundLog log;
  log.Begun(0, 1, "slow", 10);
  log.Arrived(0, 1, "eu", 12, 15);
  log.Decided(0, 1, "quorum of 1", 20);
  log.Arrived(0, 2, "slow", 10, 40);
  const LoggedRounds rounds = log.rounds();
  ASSERT_THAT(rounds, SizeIs(2));
  ASSERT_THAT(rounds[0]->arrivals, SizeIs(1));
  EXPECT_EQ(rounds[0]->arrivals[0].site, "eu");
  ASSERT_THAT(rounds[1]->arrivals, SizeIs(1));
  EXPECT_EQ(rounds[1]->arrivals[0].begun_unix_ms, 10);
  EXPECT_THAT(rounds[1]->arrivals[0].arrived_unix_ms, Optional(40));
}

TEST(RoundLog, WhatWillNotArriveIsForgottenAndWhatArrivedIsNot) {
  RoundLog log;
  log.Begun(0, 1, "gone", 10);
  log.Arrived(0, 1, "eu", 12, 15);
  log.Forget(0, "gone");
  log.Forget(0, "eu");
  ASSERT_THAT(log.rounds()[0]->arrivals, SizeIs(1));
  EXPECT_EQ(log.rounds()[0]->arrivals[0].site, "eu");
}

TEST(RoundLog, ADownloadInStripesIsTakenWithItsLast) {
  RoundLog log;
  log.Decided(0, 1, "", 1);
  EXPECT_FALSE(log.Taken(0, 1, "eu", 1, 3, 12, 20));
  EXPECT_FALSE(log.Taken(0, 1, "eu", 0, 3, 10, 30));
  EXPECT_FALSE(log.Taken(0, 1, "eu", 0, 3, 10, 31)) << "the same once more";
  EXPECT_THAT(log.Taken(0, 1, "eu", 2, 3, 11, 50), Optional(40));
  EXPECT_FALSE(log.Taken(0, 1, "eu", 2, 3, 11, 60)) << "it has it";
}

TEST(RoundLog, ADownloadThatGoesOnOverFewerConnectionsIsNotTakenTooEarly) {
  RoundLog log;
  log.Decided(0, 1, "", 1);
  EXPECT_FALSE(log.Taken(0, 1, "eu", 0, 3, 10, 20));
  EXPECT_FALSE(log.Taken(0, 1, "eu", 1, 2, 10, 30));
  EXPECT_THAT(log.Taken(0, 1, "eu", 0, 2, 10, 40), Optional(30));
}

TEST(RoundLog, WhatIsHandedOutDoesNotChange) {
  RoundLog log;
  log.Begun(0, 1, "eu", 10);
  const LoggedRounds before = log.rounds();
  log.Arrived(0, 1, "eu", 10, 15);
  log.Decided(0, 1, "done", 16);
  log.Merged(0, {1, 7}, 17);
  EXPECT_FALSE(before[0]->arrivals[0].arrived_unix_ms);
  EXPECT_FALSE(before[0]->decided_unix_ms);
  EXPECT_FALSE(before[0]->merged_unix_ms);
  EXPECT_THAT(log.rounds()[0]->merged_unix_ms, Optional(17));
}

TEST(RoundLog, KeepsTheLastRounds) {
  RoundLog log;
  const auto last = static_cast<core::Version>(RoundLog::kKeptRounds) + 10;
  for (core::Version version = 1; version <= last; ++version) log.Decided(0, version, "", version);
  const LoggedRounds rounds = log.rounds();
  ASSERT_THAT(rounds, SizeIs(RoundLog::kKeptRounds));
  EXPECT_EQ(rounds.front()->version, 11);
  EXPECT_EQ(rounds.back()->version, last);
  log.Merged(0, {1, 7}, 999);  // not kept
  EXPECT_FALSE(log.Taken(0, 1, "eu", 0, 1, 1, 2));
}

}  // namespace
}  // namespace causeway::server
