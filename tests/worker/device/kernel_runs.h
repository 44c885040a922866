// Shared by the tests of kernels: a kernel on the fake device, in several orders of its lanes.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "gtest/gtest.h"
#include "tests/worker/device/fake_backend.h"

namespace causeway::worker {

inline void RunOn(const Kernel& kernel, uint64_t seed) {
  FakeBackend backend(seed);
  backend.Launch(offload::Queue::kCompute, kernel);
  const auto done = backend.device().MakeEvent();
  backend.device().Record(done, offload::Queue::kCompute);
  backend.device().AwaitOnHost(done);
}

// `make(out)` gives a kernel that reads and writes `out`, which begins as `begin`; the result, equal for all orders.
inline std::vector<float> InEveryOrder(const std::vector<float>& begin,
                                       const std::function<Kernel(std::vector<float>& out)>& make) {
  std::vector<float> first = begin;
  RunOn(make(first), 0);
  for (const uint64_t seed : {1, 5, 11}) {
    std::vector<float> other = begin;
    RunOn(make(other), seed);
    EXPECT_TRUE(other == first) << "lanes in another order, seed " << seed;
  }
  return first;
}

inline void ExpectNear(const std::vector<float>& got, const std::vector<float>& expected, double tolerance) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], tolerance) << i;
}

}  // namespace causeway::worker
