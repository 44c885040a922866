#include "server/status/event_streams.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <chrono>

#include "core/thread.h"
#include "tests/core/virtual_time.h"

namespace causeway::server {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class EventStreamsTest : public ::testing::Test {
 protected:
  // The milliseconds since the first full second, and the text that the stream sends then.
  std::pair<int64_t, std::string> Next() {
    std::string said;
    EXPECT_TRUE(stream_->Next([&](std::string_view text) {
      said += text;
      return true;
    }));
    return {(time_.Now() - begin_) / std::chrono::milliseconds(1), said};
  }

  core::VirtualTime time_;
  const core::Clock::TimePoint begin_ = time_.Now();  // a full second, and an even one
  StatusBoard board_{{.version = "1.2.3", .host = {}}};
  EventStreams streams_{&board_, 1};
  const std::unique_ptr<EventStreams::Stream> stream_ = streams_.Open();
};

TEST_F(EventStreamsTest, PagesGoAtOnceAndThenAtEachFullSecondATimelineAtEachEvenOne) {
  core::SleepUntil(begin_ + std::chrono::milliseconds(300));
  board_.Publish({.state = "training"});
  const auto [first_ms, first] = Next();
  EXPECT_EQ(first_ms, 300);
  EXPECT_THAT(first, StartsWith("retry: 2000\n\nevent: status\ndata: {"));
  EXPECT_THAT(first, HasSubstr("event: timeline"));
  for (const int64_t ms : {1'000, 2'000, 3'000, 4'000}) {
    board_.Publish({.state = "training"});
    const auto [at_ms, said] = Next();
    EXPECT_EQ(at_ms, ms);
    EXPECT_THAT(said, StartsWith("event: status\ndata: {"));
    EXPECT_EQ(said.find("event: timeline") != std::string::npos, ms % 2'000 == 0) << ms;
  }
}

TEST_F(EventStreamsTest, WithNothingNewItSaysEachSecondThatItIsThere) {
  board_.Publish({.state = "training"});
  Next();
  for (const int64_t ms : {1'000, 2'000, 3'000}) EXPECT_EQ(Next(), std::pair(ms, std::string(":\n\n")));
}

}  // namespace
}  // namespace causeway::server
