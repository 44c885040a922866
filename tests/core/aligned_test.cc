#include "core/aligned.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace causeway::core {
namespace {

TEST(AlignedFloats, BeginOnACacheLineWhateverTheirSize) {
  constexpr size_t kLarge = kPagesFromBytes / sizeof(float);
  for (const size_t size : {size_t{1}, size_t{17}, kLarge - 1, kLarge, kLarge + 1, 3 * kLarge}) {
    AlignedFloats values(size, 2.5f);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(values.data()) % kCacheLineBytes, 0u) << size;
    EXPECT_EQ(values.back(), 2.5f) << size;
    values.push_back(1);  // grows: from the heap into pages, too
    EXPECT_EQ(values[size - 1], 2.5f) << size;
  }
}

}  // namespace
}  // namespace causeway::core
