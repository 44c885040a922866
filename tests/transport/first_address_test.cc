#include "transport/first_address.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "formats/posix_file.h"

namespace causeway::transport {
namespace {

TEST(FirstAddress, IsAskedForNamesWithSeveralAlone) {
  EXPECT_EQ(FirstThatAnswers({"127.0.0.1", 7077}, ""), std::nullopt);
  EXPECT_EQ(FirstThatAnswers({"::1", 7077}, ""), std::nullopt);
  EXPECT_EQ(FirstThatAnswers({"fe80::1%lo", 7077}, ""), std::nullopt);
  EXPECT_EQ(FirstThatAnswers({"no.such.host.invalid", 7077}, ""), std::nullopt);
}

// Where localhost has ::1 as well, that one refuses at once; else it has one address.
TEST(FirstAddress, IsTheOneThatListens) {
  const formats::FileDescriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at = {.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
  socklen_t bytes = sizeof(at);
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&at), bytes), 0);
  ASSERT_EQ(::listen(listener.get(), 8), 0);
  ASSERT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&at), &bytes), 0);
  const auto first = FirstThatAnswers({"localhost", ntohs(at.sin_port)}, "");
  if (first) {
    EXPECT_EQ(first->host, "127.0.0.1");
  }
}

}  // namespace
}  // namespace causeway::transport
