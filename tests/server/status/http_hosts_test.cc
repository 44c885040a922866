#include <gtest/gtest.h>
#include <unistd.h>

#include <array>

#include "server/status/http_server.h"

namespace causeway::server {
namespace {

TEST(HttpHosts, AreAddressesThisMachineAndThoseListed) {
  const HttpHosts hosts({"coordinator", "Status.Example.org"});
  std::array<char, 256> own = {};
  ASSERT_EQ(gethostname(own.data(), own.size() - 1), 0);
  for (const std::string& host : std::vector<std::string>{
           "127.0.0.1", "127.0.0.1:7078", "[::1]", "[::1]:7078", "10.1.2.3:80", "localhost:7078", "LOCALHOST",
           "localhost.:7078", "host.docker.internal:7078", "coordinator:7078", "status.example.org", own.data()}) {
    EXPECT_TRUE(hosts.Allows(host)) << host;
  }
  for (const char* host : {"", ":7078", "elsewhere.example:7078", "127.0.0.1.elsewhere.example", "[]:7078",
                           "coordinator.elsewhere.example", "localhost.elsewhere.example:7078", "1.2.3"}) {
    EXPECT_FALSE(hosts.Allows(host)) << host;
  }
}

}  // namespace
}  // namespace causeway::server
