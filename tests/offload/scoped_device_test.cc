#include <gmock/gmock-matchers.h>
#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <set>
#include <utility>
#include <vector>

#include "offload/device.h"

namespace causeway::offload {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A thread's state in the runtime of three devices.
struct PlayedRuntime {
  using Error = int;
  using Mode = char;
  static constexpr Mode kRelaxed = 'r';

  static int Current() { return current; }
  static Error Choose(int index) {
    chosen.push_back(index);
    if (index > 2) return 101;
    current = index;
    return 0;
  }
  static bool HasContext(int index) { return contexts.contains(index); }
  static Mode ExchangeMode(Mode to) { return std::exchange(mode, to); }

  static inline int current = 0;
  static inline char mode = 'g';
  static inline std::vector<int> chosen;
  static inline std::set<int> contexts;
};
using Scoped = ScopedDevice<PlayedRuntime>;

class ScopedDeviceTest : public ::testing::Test {
 protected:
  ScopedDeviceTest() {
    PlayedRuntime::current = 0;
    PlayedRuntime::mode = 'g';
    PlayedRuntime::chosen.clear();
    PlayedRuntime::contexts = {0, 1, 2};
  }
};

TEST_F(ScopedDeviceTest, TheThreadHasItsOwnDeviceAgain) {
  {
    const Scoped outer(1);
    EXPECT_EQ(PlayedRuntime::current, 1);
    {
      const Scoped inner(2);
      EXPECT_EQ(PlayedRuntime::current, 2);
    }
    EXPECT_EQ(PlayedRuntime::current, 1);
  }
  EXPECT_THAT(PlayedRuntime::chosen, ElementsAre(1, 2, 1, 0));
}

TEST_F(ScopedDeviceTest, TheSameDeviceIsNotChosenAgain) {
  { const Scoped here(0); }
  EXPECT_THAT(PlayedRuntime::chosen, IsEmpty());
}

TEST_F(ScopedDeviceTest, NoContextIsMadeOnADeviceThatIsNotInUse) {
  PlayedRuntime::contexts = {1};
  { const Scoped here(1); }
  EXPECT_EQ(PlayedRuntime::current, 1);
  EXPECT_THAT(PlayedRuntime::chosen, ElementsAre(1));
}

TEST_F(ScopedDeviceTest, AllocationsDoNotEndAnotherThreadsCapture) {
  {
    const Scoped here(0);
    EXPECT_EQ(PlayedRuntime::mode, 'r');
    { const Scoped inner(1); }
    EXPECT_EQ(PlayedRuntime::mode, 'r');
  }
  EXPECT_EQ(PlayedRuntime::mode, 'g');
}

TEST_F(ScopedDeviceTest, ADeviceThatIsNotThereIsAnError) {
  EXPECT_EQ(Scoped(7).error(), 101);
  EXPECT_EQ(Scoped(1).error(), 0);
  EXPECT_EQ(PlayedRuntime::current, 0);
}

}  // namespace
}  // namespace causeway::offload
