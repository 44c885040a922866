#include "core/listen_failure.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace causeway::core {
namespace {

// Bound to a free port of the loopback; listens once the test calls listen().
class ListenFailure : public ::testing::Test {
 protected:
  ListenFailure() : descriptor_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(descriptor_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(getsockname(descriptor_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
  }
  ~ListenFailure() override { close(descriptor_); }

  int descriptor_;
  int port_ = 0;
};

TEST_F(ListenFailure, OfAPortThatIsTakenSaysHowToFindTheProgram) {
  ASSERT_EQ(listen(descriptor_, 1), 0);
  EXPECT_EQ(
      WhyNotListening("127.0.0.1", port_),
      absl::StrCat("127.0.0.1:", port_, " is taken by another program: ss -ltnp 'sport = :", port_, "' names it"));
}

TEST_F(ListenFailure, OfAnotherMachinesAddressAsksAboutTheAddress) {
  ASSERT_EQ(listen(descriptor_, 1), 0);
  EXPECT_EQ(WhyNotListening("192.0.2.1", port_),
            absl::StrCat("cannot listen on 192.0.2.1:", port_, "; is it an address of this machine?"));
}

}  // namespace
}  // namespace causeway::core
