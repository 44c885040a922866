#include <gtest/gtest.h>

#include "offload/host_array.h"
#include "tests/offload/fake_device.h"

namespace causeway::offload {
namespace {

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
