// Strangers at the ports of Gloo's pairs, while ranks connect.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "tests/worker/ranks/gloo_ranks.h"
#include "worker/ranks/gloo_wire.h"

namespace causeway::worker {
namespace {

using ::testing::HasSubstr;

constexpr int kWorld = 3;

// The TCP ports at which this process listens.
std::set<int> ListeningPorts() {
  std::set<std::string> own;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    own.insert(std::filesystem::read_symlink(entry.path(), gone).string());
  }
  std::set<int> ports;
  std::ifstream table("/proc/self/net/tcp");
  std::string line;
  while (std::getline(table, line)) {
    std::istringstream fields(line);
    std::string number, local, remote, state, queues, timer, retransmits, user, timeout, inode;
    fields >> number >> local >> remote >> state >> queues >> timer >> retransmits >> user >> timeout >> inode;
    if (state == "0A" && own.contains("socket:[" + inode + "]")) ports.insert(std::stoi(local.substr(9), nullptr, 16));
  }
  return ports;
}

// Connects to all of them, says something, and stays, or ends at once.
class Strangers {
 public:
  Strangers(const std::string& says, bool stays) {
    for (const int port : ListeningPorts()) {
      const int stranger = socket(AF_INET, SOCK_STREAM, 0);
      sockaddr_in address = {};
      address.sin_family = AF_INET;
      address.sin_port = htons(static_cast<uint16_t>(port));
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      if (connect(stranger, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
        (void)send(stranger, says.data(), says.size(), MSG_NOSIGNAL);
      }
      sockets_.push_back(stranger);
    }
    if (!stays) Leave();
  }
  ~Strangers() { Leave(); }

  size_t count() const { return count_ = std::max(count_, sockets_.size()); }

 private:
  void Leave() {
    count();
    for (const int socket : sockets_) close(socket);
    sockets_.clear();
  }

  std::vector<int> sockets_;
  mutable size_t count_ = 0;
};

// `on_addresses` is called once in each attempt, when all ranks listen.
std::vector<absl::Status> Connect(const std::function<void(int attempt)>& on_addresses,
                                  const std::vector<std::string>& keys = std::vector<std::string>(kWorld, "the key")) {
  ContactExchange exchange(kWorld);
  return OnRanks(kWorld, [&](int rank) -> absl::Status {
    int exchanges = 0;
    const auto wire = ConnectByGloo({.rank = rank,
                                     .world = kWorld,
                                     .host = absl::StrCat("host", rank),
                                     .address = "127.0.0.1",
                                     .key = RankKey(keys[rank]),
                                     .prove_s = 0.3},
                                    [&](const RankContact& mine) {
                                      std::vector<RankContact> all = exchange(rank, mine);
                                      if (++exchanges % 2 == 0 && rank == 0) on_addresses(exchanges / 2);
                                      return exchanges % 2 == 0 ? exchange(rank, mine) : all;
                                    });
    if (!wire.ok()) return wire.status();
    OrderedCollectives collectives(*wire);
    std::vector<float> values(1000, static_cast<float>(rank));
    RETURN_IF_ERROR(collectives.Await(collectives.AllReduce(values), std::chrono::seconds(30)));
    return values[999] == 3 ? absl::OkStatus() : absl::InternalError("another sum");
  });
}

TEST(GlooMesh, StrangersAtAllItsPortsAreLeftAndTheRanksConnectAtOthers) {
  for (const bool stays : {true, false}) {
    for (const std::string says :
         {"", "GET / HTTP/1.1\r\nHost: rank0\r\nUser-Agent: a scanner\r\nAccept: */*\r\n\r\n"}) {
      std::vector<std::unique_ptr<Strangers>> strangers;
      const auto statuses = Connect([&](int attempt) {
        if (attempt <= 2) strangers.push_back(std::make_unique<Strangers>(says, stays));
      });
      for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
      ASSERT_EQ(strangers.size(), 2u);
      EXPECT_EQ(strangers[1]->count(), size_t{kWorld * (kWorld - 1)}) << "one for each other rank";
    }
  }
}

TEST(GlooMesh, AfterTenAttemptsTheRanksThatDoNotReachEachOtherAreNamed) {
  int attempts = 0;
  const auto statuses = Connect([&](int attempt) {
    attempts = attempt;
    const Strangers strangers("", /*stays=*/false);
  });
  EXPECT_EQ(attempts, 10);
  for (const absl::Status& status : statuses) {
    EXPECT_TRUE(absl::IsUnavailable(status));
    EXPECT_THAT(status.message(), HasSubstr("do not reach each other: "));
  }
}

TEST(GlooMesh, ARankWithAnotherKeyIsNoneOfThem) {
  for (const absl::Status& status : Connect([](int) {}, {"the key", "the key", "another key"})) {
    EXPECT_THAT(status.message(),
                HasSubstr("(host2) do not reach each other: what has connected does not know the ranks' key"));
  }
}

TEST(GlooMesh, NothingListensBeforeAllRanksAreThere) {
  const std::set<int> before = ListeningPorts();
  ConnectMesh({.rank = 0, .world = 2, .host = "here", .address = "127.0.0.1"},
              [&](const RankContact&) -> absl::StatusOr<std::vector<RankContact>> {
                EXPECT_EQ(ListeningPorts(), before);
                return absl::CancelledError("enough");
              })
      .IgnoreError();
}

}  // namespace
}  // namespace causeway::worker
