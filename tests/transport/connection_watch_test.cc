#include "transport/connection_watch.h"

#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <limits>

namespace causeway::transport {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kBeatMs = 2000;
constexpr int64_t kSecond = 1'000'000;
constexpr int64_t kSilence = ConnectionWatch::kLeastSilenceUs;

class ConnectionWatchTest : public ::testing::Test {
 protected:
  ConnectionWatchTest() { watch_.Begin(kBeatMs); }

  std::vector<int> TakeDead(int64_t now_us) { return watch_.TakeDead(now_us).connections; }
  std::vector<int> TakeSuspects(int64_t now_us) { return watch_.TakeSuspects(now_us).connections; }

  // One whose only message has arrived: from here on it waits.
  std::unique_ptr<ConnectionWatch::Stream> Waiting(int connection, int64_t now_us = 0) {
    auto stream = watch_.Open(connection, now_us);
    stream->Sends(now_us);
    stream->Arrived(1, now_us);
    return stream;
  }
  // An upload of that many chunks took so long for each of them.
  void Upload(int chunks, int64_t each_us) {
    const auto stream = Waiting(0);
    for (int i = 0; i < chunks; ++i) {
      stream->Sends(i * each_us);
      stream->Arrived(2 + i, (i + 1) * each_us);
    }
  }

  ConnectionWatch watch_;
};

TEST_F(ConnectionWatchTest, AConnectionWhoseStreamHearsNoBeatIsDead) {
  const auto stream = Waiting(3);
  EXPECT_THAT(TakeDead(kSilence), IsEmpty());
  EXPECT_EQ(watch_.AddTo({}, kSilence).silent_s, 6);
  EXPECT_THAT(TakeDead(kSilence + 1), ElementsAre(3));
  EXPECT_EQ(watch_.AddTo({}, 0).redials, 1);
}

TEST_F(ConnectionWatchTest, ADeadOneSaysWhatWasMissingAndForHowLong) {
  Upload(5, 5 * kSecond);
  const auto stream = Waiting(0);
  stream->Sends(0);
  stream->Heard(/*chunk=*/false, 23 * kSecond);
  EXPECT_EQ(watch_.TakeDead(23 * kSecond).why, "no chunk has arrived there for 23.0 s, where 22.0 s are allowed");
}

TEST_F(ConnectionWatchTest, BeatsKeepItAlive) {
  const auto stream = Waiting(0);
  for (int64_t now = 0; now < 100 * kSecond; now += 2 * kSecond) {
    EXPECT_THAT(TakeDead(now), IsEmpty());
    stream->Heard(/*chunk=*/false, now);
  }
}

TEST_F(ConnectionWatchTest, ACoordinatorThatSendsNoBeatsIsNotWatched) {
  watch_.Begin(0);
  const auto stream = Waiting(0);
  EXPECT_THAT(TakeDead(1000 * kSecond), IsEmpty());
  EXPECT_EQ(watch_.AddTo({}, 1000 * kSecond).silent_s, 0);
}

TEST_F(ConnectionWatchTest, AConnectionWithoutStreamsIsNotDead) {
  Waiting(0).reset();
  EXPECT_THAT(TakeDead(1000 * kSecond), IsEmpty());
}

TEST_F(ConnectionWatchTest, IdleOnesAreMadeAnewWithADeadOneAndDoNotCount) {
  Waiting(1).reset();
  const auto stream = Waiting(0), heard = Waiting(2);
  heard->Heard(/*chunk=*/false, kSilence);
  EXPECT_THAT(TakeDead(kSilence + 1), ElementsAre(0, 1));
  EXPECT_EQ(watch_.AddTo({}, 0).redials, 1);
}

TEST_F(ConnectionWatchTest, ARequestThatDoesNotArriveIsNoticedThoughOtherStreamsHearBeats) {
  const auto waiting = Waiting(0), asks = watch_.Open(0, 0);
  asks->Sends(0);
  waiting->Heard(/*chunk=*/false, kSilence);
  EXPECT_THAT(TakeDead(kSilence), IsEmpty());
  EXPECT_THAT(TakeDead(kSilence + 1), ElementsAre(0));
}

TEST_F(ConnectionWatchTest, BeforeAnyChunkHasArrivedOneIsAllowedAMinute) {
  const auto stream = Waiting(0);
  stream->Sends(0);
  for (int64_t now = 0; now <= ConnectionWatch::kMostSilenceUs; now += 2 * kSecond) {
    stream->Heard(/*chunk=*/false, now);  // beats, which say that nothing has arrived
    EXPECT_THAT(TakeDead(now), IsEmpty());
  }
  EXPECT_THAT(TakeDead(ConnectionWatch::kMostSilenceUs + 1), ElementsAre(0));
}

TEST_F(ConnectionWatchTest, AnUploadOfASlowLinkMayTakeFourTimesTheMedian) {
  Upload(5, 5 * kSecond);
  const auto stream = Waiting(0);
  stream->Sends(0);
  const int64_t allowed = 4 * 5 * kSecond + kBeatMs * 1000;
  stream->Heard(/*chunk=*/false, allowed);
  EXPECT_THAT(TakeDead(allowed), IsEmpty());
  EXPECT_THAT(TakeDead(allowed + 1), ElementsAre(0));
}

TEST_F(ConnectionWatchTest, OnAFastLinkAnUploadThatStopsIsDeadAfterThreeBeats) {
  Upload(5, kSecond / 100);
  const auto stream = Waiting(0);
  stream->Sends(0);
  stream->Heard(/*chunk=*/false, kSilence);
  EXPECT_THAT(TakeDead(kSilence + 1), ElementsAre(0));
}

TEST_F(ConnectionWatchTest, ALongTimeAmongShortOnesAllowsTwiceThat) {
  Upload(1, 6 * kSecond);
  Upload(8, kSecond / 100);
  const auto stream = Waiting(0);
  stream->Sends(0);
  stream->Sends(0);
  stream->Heard(/*chunk=*/false, 20 * kSecond);
  EXPECT_THAT(TakeDead(14 * kSecond), IsEmpty());
  EXPECT_THAT(TakeDead(14 * kSecond + 1), ElementsAre(0));
}

TEST_F(ConnectionWatchTest, TheSilenceOfADeadConnectionAllowsNoMoreOfThem) {
  Upload(8, kSecond / 100);
  const auto died = Waiting(0);
  died->Sends(0);
  EXPECT_THAT(TakeDead(50 * kSecond), ElementsAre(0));
  const auto stream = Waiting(0, 50 * kSecond);
  stream->Sends(50 * kSecond);
  stream->Heard(/*chunk=*/false, 50 * kSecond + kSilence);
  EXPECT_THAT(TakeDead(50 * kSecond + kSilence + 1), ElementsAre(0));
}

TEST_F(ConnectionWatchTest, ADownloadOfASlowLinkMayTakeAsLongAsItsChunksDo) {
  const auto stream = Waiting(0);
  stream->ExpectsChunks(true);
  stream->Heard(/*chunk=*/true, 10 * kSecond);
  EXPECT_THAT(TakeDead(52 * kSecond), IsEmpty());
  EXPECT_THAT(TakeDead(52 * kSecond + 1), ElementsAre(0));
}

TEST_F(ConnectionWatchTest, AfterItsLastChunkADownloadWaitsLikeTheOthers) {
  const auto stream = Waiting(0);
  stream->ExpectsChunks(true);
  stream->Heard(/*chunk=*/true, 10 * kSecond);
  stream->ExpectsChunks(false);
  EXPECT_THAT(TakeDead(10 * kSecond + kSilence + 1), ElementsAre(0));
}

TEST_F(ConnectionWatchTest, WhoWaitsForItsTurnIsNotSilent) {
  const auto stream = Waiting(0);
  stream->Pauses(100 * kSecond);
  EXPECT_THAT(TakeDead(100 * kSecond + kSilence), IsEmpty());
  EXPECT_THAT(TakeDead(100 * kSecond + kSilence + 1), ElementsAre(0));
}

TEST_F(ConnectionWatchTest, StreamsOfAConnectionThatWasReplacedSayNothingAboutTheNewOne) {
  const auto old = Waiting(0);
  EXPECT_THAT(TakeDead(kSilence + 1), ElementsAre(0));
  const auto stream = Waiting(0, kSilence + 1);
  old->Heard(/*chunk=*/true, 2 * kSilence);
  old->Arrived(std::numeric_limits<int64_t>::max(), 2 * kSilence);
  EXPECT_THAT(TakeDead(2 * kSilence + 2), ElementsAre(0));
}

TEST_F(ConnectionWatchTest, AfterTheControlConnectionWasLostAMissedBeatIsEnough) {
  Waiting(1).reset();
  const auto silent = Waiting(0), heard = Waiting(2);
  heard->Heard(/*chunk=*/false, 3 * kSecond);
  EXPECT_THAT(TakeSuspects(4 * kSecond), IsEmpty());
  watch_.ControlLost();
  EXPECT_THAT(TakeSuspects(3 * kSecond), IsEmpty());
  watch_.ControlLost();
  EXPECT_THAT(TakeSuspects(3 * kSecond + 1), ElementsAre(0, 1));
}

}  // namespace
}  // namespace causeway::transport
