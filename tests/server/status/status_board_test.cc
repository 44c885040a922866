// The answers that readers get from the board.
#include "server/status/status_board.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "tests/core/fake_clock.h"
#include "tests/server/status/large_snapshot.h"

namespace causeway::server {
namespace {

using nlohmann::json;

class StatusBoardTest : public ::testing::Test {
 protected:
  core::FakeClock clock_{1'000};
  StatusBoard board_{{.version = "1.2.3", .host = {}, .clock = &clock_}};
};

TEST_F(StatusBoardTest, ThereIsNothingToReadBeforeTheFirstPage) {
  EXPECT_EQ(board_.Status(), nullptr);
  EXPECT_EQ(board_.Timeline(), nullptr);
  EXPECT_EQ(board_.Metrics(), nullptr);
  EXPECT_TRUE(board_.Healthy().ok) << "it starts, and answers";
  EXPECT_FALSE(board_.Ready().ok);
}

TEST_F(StatusBoardTest, OneRenderingIsSharedByAllReadersOfAPage) {
  board_.Publish({.state = "training"});
  const SharedText status = board_.Status();
  EXPECT_EQ(board_.Status(), status);
  EXPECT_NE(board_.Status(Details::kFull), status);
  EXPECT_EQ(json::parse(*status).at("version"), "1.2.3");
  board_.Publish({.state = "paused"});
  EXPECT_EQ(json::parse(*board_.Status()).at("state"), "paused");
  EXPECT_EQ(json::parse(*status).at("state"), "training") << "who reads it may keep it";
}

TEST_F(StatusBoardTest, AlarmsKeepTheirTimesFromPageToPage) {
  StatusSnapshot paused{.state = "paused", .unix_ms = 100, .paused = true};
  board_.Publish(paused);
  paused.unix_ms = 350;
  board_.Publish(paused);
  const json alarms = json::parse(*board_.Status()).at("alarms");
  ASSERT_EQ(alarms.size(), 1u);
  EXPECT_EQ(alarms[0].at("since_unix_ms"), 100);
}

TEST_F(StatusBoardTest, ItIsHealthyUntilItFailsOrFallsSilent) {
  board_.Publish({});
  clock_.Advance(StatusBoard::kSilentMs);
  EXPECT_TRUE(board_.Healthy().ok);
  clock_.Advance(1);
  EXPECT_FALSE(board_.Healthy().ok);
  EXPECT_NE(board_.Healthy().reason, "");
  board_.Publish({.failure = "the disk is full"});
  EXPECT_EQ(board_.Healthy().reason, "the disk is full");
}

TEST_F(StatusBoardTest, ItIsReadyOnceSitesAreTakenAndNotWhileItStops) {
  board_.Publish({});
  board_.SetNotReady("restores the run's state");
  EXPECT_EQ(board_.Ready().reason, "restores the run's state");
  board_.SetReady();
  EXPECT_TRUE(board_.Ready().ok);
  board_.SetNotReady("stops");
  EXPECT_EQ(board_.Ready().reason, "stops");
  EXPECT_TRUE(board_.Healthy().ok);
}

// For the thread sanitizer: readers and the coordinator at once, on data that they share.
TEST_F(StatusBoardTest, ReadersAndTheCoordinatorMeetAtThePageAlone) {
  board_.Publish(LargeSnapshot(4, 4));
  std::vector<std::jthread> readers;
  for (int i = 0; i < 3; ++i) {
    readers.emplace_back([this](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        EXPECT_FALSE(board_.Status()->empty());
        EXPECT_FALSE(board_.Timeline()->empty());
        EXPECT_FALSE(board_.Metrics()->empty());
      }
    });
  }
  RoundLog log;
  for (core::Version version = 1; version <= 100; ++version) {
    StatusSnapshot snapshot = LargeSnapshot(4, 4);
    log.Arrived(0, version, "eu", 1, 2);
    log.Decided(0, version, "", 3);
    snapshot.rounds = log.rounds();
    board_.Publish(std::move(snapshot));
    log.Merged(0, {version, 1}, 4);
  }
}

}  // namespace
}  // namespace causeway::server
