// A coordinator's possible answers to a download: a server that says what the test wants, behind real gRPC.
#include "transport/transfer.h"

#include <gmock/gmock-more-matchers.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <future>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "causeway/v1/coordinator.grpc.pb.h"
#include "tests/transport/virtual_link.h"

namespace causeway::transport {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

v1::DownloadMessage HeaderOf(int num_chunks) {
  v1::DownloadMessage message;
  message.mutable_header()->set_version(8);
  message.mutable_header()->set_num_chunks(num_chunks);
  return message;
}

v1::DownloadMessage ChunkOf(const std::string& bytes) {
  v1::DownloadMessage message;
  message.set_chunk(bytes);
  return message;
}

v1::DownloadMessage EndOf(uint64_t digest) {
  v1::DownloadMessage message;
  message.mutable_end()->set_digest(digest);
  return message;
}

class Transfers : public testing::Test, public v1::Coordinator::Service {
 protected:
  Transfers() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    wire_ = MakeGrpcWire({"127.0.0.1", port_}, {});
  }
  ~Transfers() override { server_->Shutdown(); }

  grpc::Status Download(grpc::ServerContext*, const v1::DownloadRequest*,
                        grpc::ServerWriter<v1::DownloadMessage>* writer) override {
    const std::vector<v1::DownloadMessage> answer = answer_;  // the site may be done before all of it is written
    for (const v1::DownloadMessage& message : answer) writer->Write(message);
    return grpc::Status::OK;
  }

  // One attempt at an update of at most three chunks, over one connection.
  void Attempt(std::vector<v1::DownloadMessage> answer) {
    answer_ = std::move(answer);
    const auto transfer = MakeDownload(
        {.fragment = 2,
         .version = 7,
         .num_chunks = 3,
         .on_header = [this](const DownloadHeader& h) { headers_.push_back(h.num_chunks); },
         .on_chunk = [this](int index,
                            const std::string& chunk) { chunks_.push_back(absl::StrCat(index, ":", chunk)); },
         .done =
             [this](const absl::Status& status, uint64_t digest) {
               status_ = status;
               digest_ = digest;
             }});
    std::promise<bool> ended;
    transfer->Launch(
        {wire_.get(), 1, &pacer_, &meter_, &watch_, &proofs_}, {}, std::nullopt, [] {},
        [&ended, transfer](bool finished) { ended.set_value(finished); });
    finished_ = ended.get_future().get();
  }

  std::vector<int> headers_;
  std::vector<std::string> chunks_;
  absl::Status status_ = absl::UnknownError("not told");
  uint64_t digest_ = 0;
  bool finished_ = false;

 private:
  std::vector<v1::DownloadMessage> answer_;
  int port_ = 0;
  Pacer pacer_{0};
  LinkMeter meter_;
  ConnectionWatch watch_;
  ShownProofs proofs_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Wire> wire_;
};

TEST_F(Transfers, DownloadIsItsHeaderItsChunksAndItsDigest) {
  Attempt({HeaderOf(3), ChunkOf("a"), ChunkOf("b"), ChunkOf("c"), EndOf(5)});
  EXPECT_TRUE(finished_);
  EXPECT_TRUE(status_.ok()) << status_;
  EXPECT_EQ(digest_, 5u);
  EXPECT_THAT(headers_, ElementsAre(3));
  EXPECT_THAT(chunks_, ElementsAre("0:a", "1:b", "2:c"));
}

TEST_F(Transfers, HeaderWithANumberOfChunksThatCannotBeEndsTheDownloadBeforeItsOwnerHearsOfIt) {
  for (int num_chunks : {-1, std::numeric_limits<int>::min(), 4, std::numeric_limits<int>::max()}) {
    Attempt({HeaderOf(num_chunks), ChunkOf("a"), EndOf(5)});
    EXPECT_TRUE(finished_) << num_chunks;
    EXPECT_TRUE(absl::IsInvalidArgument(status_)) << status_;
    EXPECT_EQ(status_.message(),
              absl::StrCat("download of fragment 2 version 7: expected a header with 0 to 3 chunks, got ", num_chunks));
    EXPECT_THAT(headers_, IsEmpty());
    EXPECT_THAT(chunks_, IsEmpty());
  }
}

TEST_F(Transfers, ChunksBeforeTheHeaderAndBeyondItsNumberAreLeftOut) {
  Attempt({ChunkOf("early"), HeaderOf(2), ChunkOf("a"), ChunkOf("b"), ChunkOf("late"), EndOf(5)});
  EXPECT_TRUE(finished_);
  EXPECT_THAT(chunks_, ElementsAre("0:a", "1:b"));
}

// A transfer whose call, or whose whole link, is cut after every message that it consists of, one after the other.

constexpr int kChunks = 7;

// Runs the same transfer with a cut after each of its messages, until a run has no message left to be cut after.
// `body` starts and awaits the transfer, and looks at it.
void CutAfterEach(const LinkOptions& options, const std::function<void(VirtualLink&)>& body) {
  for (const bool whole_link : {false, true}) {
    bool cut = true;
    for (int count = 1; cut; ++count) {
      SCOPED_TRACE(testing::Message() << (whole_link ? "the link" : "the call") << " is cut after message " << count
                                      << ", " << options.channels << " channels");
      VirtualLink world(/*seed=*/count, options);
      world.RunWelcomed([&] {
        const int before = world.carried();
        world.CutAfter(count, whole_link);
        body(world);
        cut = world.carried() - before >= count;
      });
      if (testing::Test::HasFailure()) return;
      ASSERT_LT(count, 1000);
    }
  }
}

class EveryNumberOfStripes : public testing::TestWithParam<int> {
 protected:
  LinkOptions options() const { return {.channels = GetParam()}; }
};

INSTANTIATE_TEST_SUITE_P(VirtualCuts, EveryNumberOfStripes, testing::Values(1, 2, 3, 4));

void ExpectAdmittedOnce(VirtualLink& world, const Seen& seen, const ScriptedCoordinator::UploadKey& key) {
  ASSERT_THAT(seen.ends, SizeIs(1));
  EXPECT_TRUE(seen.ends[0].ok()) << seen.ends[0];
  const ScriptedCoordinator::Upload& upload = world.coordinator->uploads[key];
  EXPECT_TRUE(upload.whole());
  EXPECT_THAT(upload.arrived, Each(Pair(testing::_, 1)));
  EXPECT_THAT(upload.wrong, IsEmpty());
}

TEST_P(EveryNumberOfStripes, AnUploadThatIsCutAnywhereBringsEachChunkOnceAndItsOwnerHearsOnce) {
  CutAfterEach(options(), [](VirtualLink& world) {
    const SeenPtr seen = world.Upload(2, 7, PayloadOf(2, 7, kChunks));
    ASSERT_TRUE(world.Await([&] { return seen->done(); }));
    world.Sleep(std::chrono::seconds(10));
    ExpectAdmittedOnce(world, *seen, {false, 2, 7});
  });
}

TEST_P(EveryNumberOfStripes, ADownloadThatIsCutAnywhereBringsEachChunkOnceAndItsOwnerHearsOnce) {
  CutAfterEach(options(), [](VirtualLink& world) {
    const SeenPtr seen = world.Fetch(2, 8, /*anchor=*/false, kChunks);
    ASSERT_TRUE(world.Await([&] { return seen->done(); }));
    world.Sleep(std::chrono::seconds(10));
    ExpectFetched(*seen, PayloadOf(2, 8, kChunks), ScriptedCoordinator::DigestOf(2, 8));
    EXPECT_EQ(seen->headers, 1) << "it goes on where it broke";
  });
}

TEST_P(EveryNumberOfStripes, AnAnchorThatIsReplacedWhileItIsCutStartsOverAndIsOfOneVersion) {
  CutAfterEach(options(), [](VirtualLink& world) {
    const SeenPtr seen = world.Fetch(1, 4, /*anchor=*/true, kChunks);
    // The newer one has fewer chunks.
    world.Await([&] { return world.carried() >= 4 || seen->done(); });
    if (!seen->done()) world.coordinator->downloads[{1, true}] = {5, PayloadOf(1, 5, kChunks - 2)};
    ASSERT_TRUE(world.Await([&] { return seen->done(); }));
    const core::Version version = seen->chunks.size() == kChunks ? 4 : 5;
    ExpectFetched(*seen, PayloadOf(1, version, version == 4 ? kChunks : kChunks - 2),
                  ScriptedCoordinator::DigestOf(1, version));
    EXPECT_LE(seen->headers, 2);
  });
}

// Chunks go a second apart, so that at most one is under way where a cut takes it.
TEST_P(EveryNumberOfStripes, AnUploadBeginsWhenAllOfTheLastOneIsWrittenWhereverThatIsCut) {
  LinkOptions held = options();
  held.max_up_bytes_per_s = 1000;
  CutAfterEach(held, [](VirtualLink& world) {
    world.observe = [&](const sim::Call&, bool to_client, const std::string& message) {
      v1::UploadMessage first;
      if (to_client || !first.ParseFromString(message) || !first.has_header() || first.header().fragment() == 0) return;
      const auto& last = world.coordinator->uploads[{false, first.header().fragment() - 1, 1}];
      EXPECT_GE(last.arrived.size() + 2, last.chunks) << "when upload " << first.header().fragment() << " began";
    };
    std::vector<SeenPtr> seen;
    for (int fragment = 0; fragment < 3; ++fragment) {
      seen.push_back(world.Upload(fragment, 1, PayloadOf(fragment, 1, 5, 1000)));
    }
    for (const SeenPtr& each : seen) ASSERT_TRUE(world.Await([&] { return each->done(); }));
    for (int fragment = 0; fragment < 3; ++fragment) ExpectAdmittedOnce(world, *seen[fragment], {false, fragment, 1});
    world.observe = nullptr;
  });
}

TEST_P(EveryNumberOfStripes, ADownloadBesideAnUploadIsCutWithItAndBothAreWhole) {
  CutAfterEach(options(), [](VirtualLink& world) {
    const SeenPtr up = world.Upload(0, 3, PayloadOf(0, 3, kChunks));
    const SeenPtr down = world.Fetch(0, 3, /*anchor=*/false, kChunks);
    ASSERT_TRUE(world.Await([&] { return up->done() && down->done(); }));
    ExpectAdmittedOnce(world, *up, {false, 0, 3});
    ExpectFetched(*down, PayloadOf(0, 3, kChunks), ScriptedCoordinator::DigestOf(0, 3));
  });
}

TEST(VirtualCuts, ATransferWithoutChunksIsToldOnceWhereverItIsCut) {
  CutAfterEach({.channels = 2}, [](VirtualLink& world) {
    const SeenPtr up = world.Upload(0, 1, {});
    const SeenPtr down = world.Fetch(0, 1, /*anchor=*/false, 0);
    ASSERT_TRUE(world.Await([&] { return up->done() && down->done(); }));
    EXPECT_THAT(up->ends, ElementsAre(absl::OkStatus()));
    ExpectFetched(*down, {}, ScriptedCoordinator::DigestOf(0, 1));
  });
}

}  // namespace
}  // namespace causeway::transport
