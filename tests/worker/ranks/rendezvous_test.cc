#include "worker/ranks/rendezvous.h"

#include <gmock/gmock-matchers.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "causeway/v1/ranks.grpc.pb.h"
#include "core/check.h"
#include "tests/formats/temporary_folder.h"
#include "tests/worker/ranks/gloo_ranks.h"
#include "tests/worker/ranks/ranks_under_test.h"
#include "worker/ranks/gloo_wire.h"
#include "worker/ranks/host_address.h"

namespace causeway::worker {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<std::vector<RankContact>> MeetOnce(const MeetOptions& options, const RankContact& mine) {
  ASSIGN_OR_RETURN(const auto rendezvous, Rendezvous::Open(options));
  return rendezvous->Meet(mine);
}

class RendezvousTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::vector<RankContact>> Meet(int rank, int world, const std::string& identity = "site a",
                                                const std::string& key = "the key of the ranks") const {
    return MeetOnce(
        {.place = {rank, world, address_, "a test"}, .identity = identity, .key = RankKey(key), .timeout_s = 30},
        {absl::StrCat("host", rank), absl::StrCat("addresses ", rank)});
  }

  // Calls of strangers, who say `hello` and then `more`.
  std::unique_ptr<grpc::ClientReaderWriter<v1::MeetMessage, v1::MeetReply>> Call(grpc::ClientContext& context) {
    context.set_wait_for_ready(true);
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    return stub_->Meet(&context);
  }

  const TemporaryFolder folder_;
  const std::string address_ = absl::StrCat("unix:", folder_ / "meet");
  const std::unique_ptr<v1::Rendezvous::Stub> stub_ =
      v1::Rendezvous::NewStub(grpc::CreateChannel(address_, grpc::InsecureChannelCredentials()));
};

// More of them than rank 0 has places for: some say nothing, some prove nothing, some send too long a message.
TEST_F(RendezvousTest, StrangersAreRefusedAloneAndTheRanksMeet) {
  absl::Status rank0;
  std::thread waits([&] { rank0 = Meet(0, 2).status(); });
  const auto intrude = [this](int i) {
    grpc::ClientContext context;
    const auto stream = Call(context);
    v1::MeetMessage message;
    v1::MeetReply reply;
    message.set_nonce("a stranger's own");
    if (i % 3 > 0 && stream->Write(message) && stream->Read(&reply)) {
      message.set_request(std::string(i % 3 == 1 ? 10 : 2 << 20, 'r'));
      message.set_proof(reply.proof());
      stream->Write(message);
    }
    while (stream->Read(&reply)) EXPECT_EQ(reply.ranks_size(), 0);
    return stream->Finish().error_code();
  };
  std::vector<std::thread> strangers;
  for (int i = 0; i < 12; ++i) strangers.emplace_back([&, i] { EXPECT_NE(intrude(i), grpc::OK); });
  for (std::thread& stranger : strangers) stranger.join();
  EXPECT_TRUE(Meet(1, 2).ok());
  waits.join();
  EXPECT_TRUE(rank0.ok()) << rank0;
}

// They come again as soon as they have gone, from the address that the ranks have, too.
TEST_F(RendezvousTest, EightRanksBehindOneAddressMeetBesideSixtyFourCallersWhoSayNothing) {
  std::atomic<bool> over = false;
  std::vector<std::thread> silent;
  for (int i = 0; i < 64; ++i) {
    silent.emplace_back([&] {
      while (!over) {
        grpc::ClientContext context;
        context.set_wait_for_ready(true);
        context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(1));
        const auto stream = stub_->Meet(&context);
        v1::MeetReply reply;
        while (stream->Read(&reply)) continue;
        EXPECT_NE(stream->Finish().error_code(), grpc::OK);
      }
    });
  }
  for (const absl::Status& status : OnRanks(8, [&](int rank) { return Meet(rank, 8).status(); })) {
    EXPECT_TRUE(status.ok()) << status;
  }
  over = true;
  for (std::thread& one : silent) one.join();
}

TEST_F(RendezvousTest, RankWithAnotherKeySaysSo) {
  std::thread rank0([this] {
    const auto met = MeetOnce(
        {.place = {0, 2, address_, "a test"}, .identity = "site a", .key = RankKey("one key of them"), .timeout_s = 2},
        {});
    EXPECT_THAT(met.status().message(), HasSubstr("expected 2 ranks within 2.0 s, got 1"));
  });
  EXPECT_THAT(
      Meet(1, 2, "site a", "another key it is").status().message(),
      HasSubstr("to know the ranks' key, got one that does not: give all ranks the same CAUSEWAY_RENDEZVOUS_KEY"));
  rank0.join();
}

TEST_F(RendezvousTest, GivesEachRankTheContactsOfAllInTheirOrder) {
  const std::vector<absl::Status> statuses = OnRanks(3, [&](int rank) -> absl::Status {
    const auto all = Meet(rank, 3);
    if (!all.ok()) return all.status();
    const bool right = all->size() == 3 && (*all)[1].host == "host1" && (*all)[2].addresses == "addresses 2";
    return right ? absl::OkStatus() : absl::InternalError("other contacts");
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

TEST_F(RendezvousTest, TheSameRanksMeetAsOftenAsTheyLike) {
  const std::vector<absl::Status> statuses = OnRanks(3, [&](int rank) -> absl::Status {
    ASSIGN_OR_RETURN(const auto rendezvous,
                     Rendezvous::Open({.place = {rank, 3, address_, "a test"}, .timeout_s = 30}));
    for (int meeting = 0; meeting < 5; ++meeting) {
      ASSIGN_OR_RETURN(const auto all, rendezvous->Meet({"host", absl::StrCat(rank, " at ", meeting)}));
      for (int other = 0; other < 3; ++other) {
        if (all[other].addresses != absl::StrCat(other, " at ", meeting))
          return absl::InternalError("another meeting's");
      }
    }
    return absl::OkStatus();
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

TEST_F(RendezvousTest, ARankThatBeginsAnewWhileTheOthersGoOnEndsItForAll) {
  const std::vector<absl::Status> statuses = OnRanks(2, [&](int rank) -> absl::Status {
    ASSIGN_OR_RETURN(auto rendezvous, Rendezvous::Open({.place = {rank, 2, address_, "a test"}, .timeout_s = 30}));
    RETURN_IF_ERROR(rendezvous->Meet({"host", ""}).status());
    if (rank == 1) return Meet(1, 2, "", "").status();
    return rendezvous->Meet({"host", ""}).status();
  });
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(status.message(), HasSubstr("rank 1 of 2 (host1) has started anew while the others connect"));
  }
}

TEST_F(RendezvousTest, AnotherSiteEndsItForAllWithBoth) {
  const std::vector<absl::Status> statuses =
      OnRanks(2, [&](int rank) { return Meet(rank, 2, rank == 0 ? "site a" : "site b").status(); });
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(status.message(), HasSubstr("expected all ranks alike, got rank "));
    EXPECT_THAT(status.message(), HasSubstr("(host0) with site a"));
    EXPECT_THAT(status.message(), HasSubstr("(host1) with site b"));
  }
}

TEST_F(RendezvousTest, AnotherWorldEndsItForAllWithBoth) {
  const std::vector<absl::Status> statuses =
      OnRanks(2, [&](int rank) { return Meet(rank, rank == 0 ? 2 : 3).status(); });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.message(), "expected a world of 2 ranks, as rank 0 has, got rank 1 of 3 (host1)");
  }
}

TEST_F(RendezvousTest, ARankThatDoesNotComeIsNamedAfterTheTimeout) {
  const auto met = MeetOnce({.place = {0, 3, address_, "a test"}, .timeout_s = 0.1}, {});
  EXPECT_EQ(met.status().message(), "expected 3 ranks within 0.1 s, got 1: rank 1, 2 has not come");
  const auto none = MeetOnce({.place = {1, 2, address_ + "-none", "a test"}, .timeout_s = 0.1}, {});
  EXPECT_THAT(none.status().message(), HasSubstr("expected rank 0 of 2 at unix:"));
}

TEST(OwnAddress, IsLocalWhereTheRendezvousIs) {
  EXPECT_EQ(*OwnAddress("unix:/x"), "127.0.0.1");
  EXPECT_EQ(*OwnAddress("127.0.0.1:1"), "127.0.0.1");
  EXPECT_EQ(*OwnAddress("[::1]:1"), "127.0.0.1");
  EXPECT_TRUE(absl::IsInvalidArgument(OwnAddress("host").status()));
}

// Strangers at the ports of Gloo's pairs, while ranks connect.

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
