#include "core/address.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

namespace causeway::core {
namespace {

using ::testing::HasSubstr;

TEST(ParseAddress, TakesNamesAndBothKindsOfNumbers) {
  for (const char* text : {"eu.example.com:7077", "10.0.0.1:0", "[::1]:65535", "[2001:db8::2]:443"}) {
    const auto address = ParseAddress("--listen", text);
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_EQ(address->Text(), text);
  }
  EXPECT_EQ(ParseAddress("--listen", "[::1]:80")->host, "::1");
  EXPECT_EQ(ParseAddress("--listen", "[::1]:80")->port, 80);
}

TEST(ParseAddress, RefusesEverythingElseAndQuotesIt) {
  for (const char* text : {"", "host", ":80", "host:", "host:-1", "host:65536", "host:http", "[::1]", "[]:80", "[:80",
                           "[host]:80", "[::1:80"}) {
    const auto address = ParseAddress("--listen", text);
    EXPECT_TRUE(absl::IsInvalidArgument(address.status())) << text;
    EXPECT_THAT(std::string(address.status().message()), HasSubstr("got '" + std::string(text) + "'"));
  }
}

TEST(ParseAddress, NamesTheFlag) {
  EXPECT_EQ(ParseAddress("--http", "host").status().message(),
            "--http: expected HOST:PORT with a port from 0 to 65535, got 'host'");
}

TEST(ParseAddress, DoesWithoutSpacesAroundItAndASlashAtItsEnd) {
  for (const char* text : {" eu:7077", "eu:7077\r\n", "\teu:7077/ "}) {
    const auto address = ParseAddress("coordinator", text);
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_EQ(address->Text(), "eu:7077");
  }
  EXPECT_EQ(ParseAddress("--coordinator", "e u:7077").status().message(),
            "--coordinator: expected HOST:PORT without spaces inside, got 'e u:7077'");
}

TEST(ParseAddress, SaysThatAUrlIsNoAddress) {
  for (const std::string scheme : {"http", "https", "grpc", "tcp"}) {
    const std::string url = scheme + "://10.0.0.1:7077/";
    EXPECT_EQ(ParseAddress("--coordinator", url).status().message(),
              "--coordinator: expected HOST:PORT without " + scheme + "://, got '" + url + "'");
  }
}

TEST(ParseAddress, AsksForBracketsAroundIpv6) {
  EXPECT_THAT(std::string(ParseAddress("--listen", "2001:db8::2:443").status().message()),
              HasSubstr("in brackets, [2001:db8::2]:443"));
}

}  // namespace
}  // namespace causeway::core
