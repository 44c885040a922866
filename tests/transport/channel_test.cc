#include "transport/channel.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

namespace causeway::transport {
namespace {

using ::testing::HasSubstr;

TEST(CheckPlaintextAllowed, OnlyOnLoopbackUnlessAskedFor) {
  for (const char* host : {"localhost", "127.0.0.1", "127.255.0.9", "::1"}) {
    EXPECT_TRUE(CheckPlaintextAllowed({host, 1}, /*insecure=*/false).ok()) << host;
  }
  for (const char* host : {"0.0.0.0", "10.0.0.1", "eu.example.com", "::", "127.example.com", "127.0.0.1.example.com"}) {
    const absl::Status status = CheckPlaintextAllowed({host, 1}, /*insecure=*/false);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << host;
    EXPECT_THAT(std::string(status.message()), HasSubstr("--insecure")) << host;
    EXPECT_TRUE(CheckPlaintextAllowed({host, 1}, /*insecure=*/true).ok()) << host;
  }
}

}  // namespace
}  // namespace causeway::transport
