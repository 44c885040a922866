#include "transport/pacer.h"

#include <gtest/gtest.h>

namespace causeway::transport {
namespace {

TEST(Pacer, WithoutARateEverythingGoesAtOnce) {
  Pacer pacer(0);
  EXPECT_EQ(pacer.Reserve(1 << 30, 5), 5);
  EXPECT_EQ(pacer.Reserve(1 << 30, 6), 6);
}

TEST(Pacer, BytesWaitForThoseBeforeThem) {
  Pacer pacer(1e6);  // a byte a microsecond
  EXPECT_EQ(pacer.Reserve(1000, 0), 0);
  EXPECT_EQ(pacer.Reserve(500, 100), 1000);
  EXPECT_EQ(pacer.Reserve(1, 100), 1500);
}

TEST(Pacer, TimeWithoutTrafficIsNotSavedUp) {
  Pacer pacer(1e6);
  pacer.Reserve(1000, 0);
  EXPECT_EQ(pacer.Reserve(1000, 9000), 9000);
  EXPECT_EQ(pacer.Reserve(1000, 9000), 10000);
}

}  // namespace
}  // namespace causeway::transport
