#include "offload/host_array.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace causeway::offload {
namespace {

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

}  // namespace
}  // namespace causeway::offload
