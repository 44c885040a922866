#include "core/address.h"

#include <arpa/inet.h>
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "core/host_limits.h"
#include "core/listen_failure.h"
#include "tests/formats/temporary_folder.h"

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

// A root with files of the proc and cgroup file systems.
class Root {
 public:
  void Write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(folder_ / path).parent_path());
    folder_.Write(path, text);
  }
  const std::string& path() const { return folder_.path(); }

 private:
  TemporaryFolder folder_;
};

TEST(HostLimits, AreTheLeastOfAllGroupsAbove) {
  const Root root;
  root.Write("proc/self/cgroup", "0::/site/worker\n");
  root.Write("sys/fs/cgroup/site/worker/cpu.max", "max 100000\n");
  root.Write("sys/fs/cgroup/site/cpu.max", "150000 100000\n");
  root.Write("sys/fs/cgroup/site/worker/memory.max", "5000\n");
  root.Write("sys/fs/cgroup/site/worker/memory.current", "4500\n");
  root.Write("sys/fs/cgroup/site/worker/memory.stat", "anon 1000\ninactive_file 700\n");
  root.Write("sys/fs/cgroup/site/memory.max", "max\n");
  root.Write("sys/fs/cgroup/site/worker/pids.max", "max\n");
  root.Write("sys/fs/cgroup/site/worker/pids.current", "8\n");
  root.Write("sys/fs/cgroup/site/pids.max", "100\n");
  root.Write("sys/fs/cgroup/site/pids.current", "70\n");
  const GroupLimits limits = ReadGroupLimits(root.path());
  EXPECT_EQ(limits.cores, 1.5);
  EXPECT_EQ(limits.memory_bytes, 1200);
  EXPECT_EQ(limits.threads, 30);
  EXPECT_EQ(limits.threads_file, root.path() + "/sys/fs/cgroup/site/pids.max");
}

TEST(HostLimits, InAContainerTheFoldersBeginAtItsOwnGroup) {
  const Root root;
  root.Write("proc/self/cgroup", "0::/docker/0123456789\n");
  root.Write("sys/fs/cgroup/cpu.max", "50000 100000\n");
  EXPECT_EQ(ReadGroupLimits(root.path()).cores, 0.5);
}

TEST(HostLimits, OfVersion1) {
  const Root root;
  root.Write("proc/self/cgroup", "7:cpuacct,cpu:/site\n4:memory:/site\n1:name=systemd:/\n");
  root.Write("sys/fs/cgroup/cpu/site/cpu.cfs_quota_us", "400000\n");
  root.Write("sys/fs/cgroup/cpu/site/cpu.cfs_period_us", "100000\n");
  root.Write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  root.Write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  root.Write("sys/fs/cgroup/memory/site/memory.limit_in_bytes", "9000\n");
  root.Write("sys/fs/cgroup/memory/site/memory.usage_in_bytes", "2000\n");
  const GroupLimits limits = ReadGroupLimits(root.path());
  EXPECT_EQ(limits.cores, 4);
  EXPECT_EQ(limits.memory_bytes, 7000);
}

TEST(HostLimits, MissingFilesLimitNothing) {
  const Root root;
  EXPECT_EQ(ReadGroupLimits(root.path()).cores, std::numeric_limits<double>::infinity());
  EXPECT_EQ(UsableMemoryBytes(root.path()), std::numeric_limits<int64_t>::max());
  root.Write("proc/meminfo", "MemTotal: 100 kB\nMemAvailable:   10 kB\n");
  EXPECT_EQ(UsableMemoryBytes(root.path()), 10240);
}

TEST(HostLimits, OfThisMachineArePossible) {
  EXPECT_GE(UsableCores(), 1);
  EXPECT_GT(UsableMemoryBytes(), int64_t{1} << 20);
}

}  // namespace
}  // namespace causeway::core
