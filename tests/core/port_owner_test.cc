#include "core/port_owner.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace causeway::core {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Bound to a free port of the loopback; listens once the test calls listen().
class PortOwner : public ::testing::Test {
 protected:
  PortOwner() : descriptor_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(descriptor_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(getsockname(descriptor_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
  }
  ~PortOwner() override { close(descriptor_); }

  int descriptor_;
  int port_ = 0;
};

TEST_F(PortOwner, IsTheProgramThatListensWithItsProcess) {
  ASSERT_EQ(listen(descriptor_, 1), 0);
  EXPECT_THAT(OwnerOfPort(port_), AllOf(HasSubstr("_test"), HasSubstr(absl::StrCat("(pid ", getpid(), ")"))));
  const std::string address = absl::StrCat("127.0.0.1:", port_);
  EXPECT_THAT(WhyNotListening("127.0.0.1", port_), HasSubstr(address + " is taken by "));
}

TEST_F(PortOwner, AnAddressOfAnotherMachineIsNotTakenByAProgramHere) {
  ASSERT_EQ(listen(descriptor_, 1), 0);
  EXPECT_EQ(WhyNotListening("192.0.2.1", port_),
            absl::StrCat("cannot listen on 192.0.2.1:", port_, "; is the port taken, or not this machine's address?"));
}

TEST_F(PortOwner, APortWhereNoProgramListensHasNone) {
  EXPECT_THAT(OwnerOfPort(port_), IsEmpty());
  EXPECT_EQ(WhyNotListening("127.0.0.1", port_),
            absl::StrCat("cannot listen on 127.0.0.1:", port_, "; is the port taken, or not this machine's address?"));
}

}  // namespace
}  // namespace causeway::core
