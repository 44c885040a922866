#include "transport/channel.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

namespace causeway::transport {
namespace {

using ::testing::HasSubstr;

TEST(ParseAddress, TakesNamesAndBothKindsOfNumbers) {
  for (const char* text : {"eu.example.com:7077", "10.0.0.1:0", "[::1]:65535", "[2001:db8::2]:443"}) {
    const auto address = ParseAddress(text);
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_EQ(address->Text(), text);
  }
  EXPECT_EQ(ParseAddress("[::1]:80")->host, "::1");
  EXPECT_EQ(ParseAddress("[::1]:80")->port, 80);
}

TEST(ParseAddress, RefusesEverythingElseAndQuotesIt) {
  for (const char* text : {"", "host", ":80", "host:", "host:-1", "host:65536", "host:http", "[::1]", "[]:80", "[:80",
                           "[host]:80", "[::1:80"}) {
    const auto address = ParseAddress(text);
    EXPECT_TRUE(absl::IsInvalidArgument(address.status())) << text;
    EXPECT_THAT(std::string(address.status().message()), HasSubstr("got '" + std::string(text) + "'"));
  }
}

TEST(ParseAddress, AsksForBracketsAroundIpv6) {
  EXPECT_THAT(std::string(ParseAddress("2001:db8::2:443").status().message()),
              HasSubstr("in brackets, [2001:db8::2]:443"));
}

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
