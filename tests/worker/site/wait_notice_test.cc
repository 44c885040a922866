#include "worker/site/wait_notice.h"

#include <gtest/gtest.h>

namespace causeway::worker {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(WaitNotice, ReasonIsTakenOnceAfterFiveSeconds) {
  const core::Clock::TimePoint begin{};
  WaitNotice notice;
  EXPECT_EQ(notice.Take(begin + seconds(9)), "");
  notice.Heard("1 of 2 sites are ready", begin);
  EXPECT_EQ(notice.Take(begin + milliseconds(4999)), "");
  EXPECT_EQ(notice.Take(begin + seconds(5)), "1 of 2 sites are ready");
  EXPECT_EQ(notice.Take(begin + seconds(6)), "");
}

TEST(WaitNotice, ALaterReasonCountsFromItsOwnTime) {
  const core::Clock::TimePoint begin{};
  WaitNotice notice;
  notice.Heard("1 of 3", begin);
  notice.Heard("2 of 3", begin + seconds(4));
  EXPECT_EQ(notice.heard(), 2) << "a wait that began before is to end";
  EXPECT_EQ(notice.Take(begin + seconds(8)), "");
  EXPECT_EQ(notice.Take(begin + seconds(9)), "2 of 3");
}

TEST(WaitNotice, NothingIsSaidOfAWaitThatIsOver) {
  const core::Clock::TimePoint begin{};
  WaitNotice notice;
  notice.Heard("1 of 2", begin);
  notice.Over();
  EXPECT_EQ(notice.Take(begin + seconds(9)), "");
}

TEST(WaitNotice, AWaitEndsWhenItIsToBeLookedAtAndNoLaterThanItMay) {
  const core::Clock::TimePoint begin{};
  WaitNotice notice;
  EXPECT_EQ(notice.Until(begin, seconds(60)), seconds(60));
  notice.Heard("1 of 2", begin);
  EXPECT_EQ(notice.Until(begin + seconds(1), seconds(60)), seconds(4));
  EXPECT_EQ(notice.Until(begin + seconds(1), seconds(2)), seconds(2));
  EXPECT_EQ(notice.Until(begin + seconds(9), seconds(60)), seconds(0));
}

}  // namespace
}  // namespace causeway::worker
