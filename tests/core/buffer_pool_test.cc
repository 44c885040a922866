#include "core/buffer_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace causeway::core {
namespace {

TEST(BufferPool, WhatIsGivenBackIsLentAgain) {
  BufferPool pool;
  const float* first = nullptr;
  {
    const Buffer buffer = pool.Take(4096);
    EXPECT_EQ(buffer.values().size(), 4096u);
    first = buffer.values().data();
    EXPECT_EQ(pool.free_values(), 0u);
  }
  EXPECT_EQ(pool.free_values(), 4096u);
  const Buffer again = pool.Take(4096);
  EXPECT_EQ(again.values().data(), first);
  EXPECT_EQ(pool.free_values(), 0u);
}

TEST(BufferPool, AnArrayThatIsALittleLargerServesWithTheSizeThatWasAskedFor) {
  BufferPool pool;
  const float* larger = nullptr;
  {
    const Buffer buffer = pool.Take(9 * 4096);
    larger = buffer.values().data();
  }
  const Buffer smaller = pool.Take(8 * 4096);
  EXPECT_EQ(smaller.values().data(), larger);
  EXPECT_EQ(smaller.values().size(), size_t{8 * 4096});
}

TEST(BufferPool, TheSmallestOfThoseThatFitIsLent) {
  BufferPool pool;
  const float* close = nullptr;
  {
    const Buffer large = pool.Take(9000), small = pool.Take(8192);
    close = small.values().data();
  }
  EXPECT_EQ(pool.Take(8192).values().data(), close);
}

TEST(BufferPool, AMuchLargerArrayIsNotLentForASmallOneAndMakesRoomForIt) {
  BufferPool pool;
  pool.Take(100 * 4096).Reset();
  ASSERT_EQ(pool.free_values(), size_t{100 * 4096});
  Buffer small = pool.Take(4096);
  EXPECT_EQ(pool.free_values(), 0u);  // the large one is gone
  small.Reset();
  EXPECT_EQ(pool.free_values(), 4096u);  // and was not lent in its place
}

TEST(BufferPool, AnArrayThatIsTooSmallIsReplaced) {
  BufferPool pool;
  pool.Take(4096).Reset();
  Buffer large = pool.Take(8192);
  EXPECT_EQ(large.values().size(), 8192u);
  std::ranges::fill(large.values(), 1.0f);
  large.Reset();
  EXPECT_EQ(pool.free_values(), 8192u);
}

TEST(BufferPool, TrimFreesWhatIsNotLentAndLeavesWhatIs) {
  BufferPool pool;
  Buffer lent = pool.Take(4096);
  std::ranges::fill(lent.values(), 3.0f);
  pool.Take(8192).Reset();
  ASSERT_EQ(pool.free_values(), 8192u);
  pool.Trim();
  EXPECT_EQ(pool.free_values(), 0u);
  EXPECT_EQ(std::ranges::count(lent.values(), 3.0f), 4096);
  lent.Reset();
  EXPECT_EQ(pool.free_values(), 4096u);
}

TEST(BufferPool, AMovedBufferIsGivenBackOnce) {
  BufferPool pool;
  {
    Buffer first = pool.Take(4096);
    Buffer second = std::move(first);
    EXPECT_TRUE(first.empty());  // NOLINT(bugprone-use-after-move): that is what is tested
    EXPECT_FALSE(second.empty());
    Buffer other = pool.Take(8192);
    other = std::move(second);  // gives back what it held
    EXPECT_EQ(pool.free_values(), 8192u);
    EXPECT_EQ(other.values().size(), 4096u);
  }
  EXPECT_EQ(pool.free_values(), size_t{4096 + 8192});
}

// Fragments of several sizes, of which at most three are in flight.
TEST(BufferPool, ManyRoundsOfFragmentsOfDifferentSizesKeepNoMoreArraysThanAreInFlight) {
  const std::vector<size_t> sizes = {4096, 40 * 4096, 7 * 4096, 41 * 4096, 100 * 4096, 12 * 4096, 99 * 4096};
  const size_t largest = *std::ranges::max_element(sizes);
  BufferPool pool;
  std::vector<Buffer> in_flight(3);
  for (size_t take = 0; take < 5000; ++take) {
    Buffer& slot = in_flight[take % in_flight.size()];
    slot.Reset();
    slot = pool.Take(sizes[(take * take + take / 3) % sizes.size()]);
    size_t lent = 0;
    for (const Buffer& buffer : in_flight) lent += buffer.values().size();
    ASSERT_LE(pool.free_values() + lent, in_flight.size() * largest) << "after " << take;
  }
  for (Buffer& buffer : in_flight) buffer.Reset();
  EXPECT_LE(pool.free_values(), in_flight.size() * largest);
}

}  // namespace
}  // namespace causeway::core
