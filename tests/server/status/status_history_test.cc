// Figures that follow from the snapshots before.
#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <functional>

#include "server/status/status_board.h"

namespace causeway::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
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

}  // namespace
}  // namespace causeway::server
