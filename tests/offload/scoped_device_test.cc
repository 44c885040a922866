#include <gmock/gmock-matchers.h>
#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "offload/device.h"
#include "offload/host_array.h"
#include "tests/offload/fake_device.h"

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

TEST(HostArray, BeginsAsZerosOnACacheLineOrAHugePage) {
  for (const size_t bytes : {size_t{4}, size_t{4096}, (size_t{2} << 20) + 4, size_t{10} << 20}) {
    const HostArray array(bytes);
    const std::span<float> values = array.Values<float>();
    EXPECT_EQ(values.size_bytes(), bytes);
    EXPECT_TRUE(std::ranges::all_of(values, [](float x) { return x == 0; }));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(array.data()) % (bytes < size_t{2} << 20 ? 64 : size_t{2} << 20), 0u);
    values.back() = 1;
  }
  EXPECT_TRUE(HostArray(0).Values<float>().empty());
}

TEST(HostArray, KeepsItsAddressWhereItIsMovedTo) {
  HostArray from(100);
  void* const data = from.data();
  const HostArray to = std::move(from);
  EXPECT_EQ(to.data(), data);
  EXPECT_EQ(to.bytes(), 100u);
}

TEST(PinnedPool, LendsAgainWhatCameBackWithoutPinningIt) {
  FakeDevice device(FakeDevice::Runs::kStepped, 1);
  {
    PinnedPool pool(&device);
    void* first = nullptr;
    {
      const PinnedPool::Array array = *pool.Take(100);
      EXPECT_EQ(array.Values<float>().size(), 25u);
      first = array.data();
      EXPECT_EQ(pool.idle_bytes(), 0);
    }
    EXPECT_EQ(pool.idle_bytes(), 100);
    const PinnedPool::Array smaller = *pool.Take(60), larger = *pool.Take(200);
    EXPECT_EQ(smaller.data(), first);
    EXPECT_EQ(smaller.bytes(), 60u);
    EXPECT_EQ(device.pinned(), 2u);
    EXPECT_EQ(pool.Take(0)->data(), nullptr);
  }
  EXPECT_EQ(device.pinned(), 0u);
}

}  // namespace
}  // namespace causeway::offload
