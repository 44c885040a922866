#include "worker/device/staged_copies.h"

#include <gtest/gtest.h>

#include "core/bfloat16.h"
#include "tests/worker/device/fake_backend.h"

namespace causeway::worker {
namespace {

// Several rounds of the ring, with a rest.
constexpr int64_t kValues = 7 * StagedCopies::kPieceValues / 2 + 3;

TEST(StagedCopies, BringAllValuesThereAndBackInAnyOrderOfTheQueue) {
  for (const uint64_t seed : {1, 2, 3, 4}) {
    FakeBackend backend(seed);
    offload::FakeDevice& device = backend.device();
    offload::PinnedPool pool(&device);
    StagedCopies copies(&device, &pool, kValues);
    std::vector<float> values(kValues), got(kValues);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 1000003) * 0.37f;
    void* const there = *device.Allocate(values.size() * sizeof(float));
    const std::vector<float> expected = values;
    ASSERT_TRUE(copies.ToDevice(values, there, ValueType::kFloat32).ok());
    std::ranges::fill(values, -1.0f);  // ToDevice has returned
    ASSERT_TRUE(copies.ToHost(static_cast<const float*>(there), got).ok());
    EXPECT_EQ(got, expected);
    ASSERT_TRUE(copies.ToDevice(expected, there, ValueType::kBfloat16).ok());
    ASSERT_TRUE(copies.ToHost(static_cast<const float*>(there), std::span(got).first(kValues / 2)).ok());
    const auto* const rounded = reinterpret_cast<const uint16_t*>(got.data());
    for (size_t i = 0; i < expected.size() - 1; ++i) ASSERT_EQ(rounded[i], core::ToBfloat16(expected[i])) << i;
    device.Free(there);
  }
}

TEST(StagedCopies, OfAFewValuesTakeFewBytesOfPinnedMemory) {
  FakeBackend backend;
  offload::PinnedPool pool(&backend.device());
  {
    StagedCopies copies(&backend.device(), &pool, 10);
    void* const there = *backend.device().Allocate(40);
    ASSERT_TRUE(copies.ToDevice(std::vector<float>(10), there, ValueType::kFloat32).ok());
  }
  EXPECT_EQ(pool.idle_bytes(), 120);
}

}  // namespace
}  // namespace causeway::worker
