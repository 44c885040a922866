// A link over real gRPC, once through a session. All that may go wrong is held in virtual time (virtual_*_test.cc).
#include "transport/grpc_link.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <future>

#include "causeway/v1/coordinator.grpc.pb.h"
#include "core/run_config.h"
#include "transport/channel.h"
#include "transport/control_session.h"
#include "transport/link_meter.h"
#include "transport/messages.h"

namespace causeway::transport {
namespace {

using testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::HasSubstr;
using testing::Not;

core::Manifest ManifestForTest() { return {{"a", {300}, core::TensorKind::kMatrix, 0}}; }

// Welcomes every site, takes one chunk of an upload and gives out one of a download.
class OneChunkCoordinator final : public v1::Coordinator::Service {
 public:
  std::string uploaded;

 private:
  grpc::Status Describe(grpc::ServerContext*, const v1::DescribeRequest*, v1::RunDescription* run) override {
    run->set_run_id("run");
    return grpc::Status::OK;
  }
  grpc::Status Control(grpc::ServerContext*,
                       grpc::ServerReaderWriter<v1::CoordinatorMessage, v1::SiteMessage>* stream) override {
    v1::SiteMessage message;
    stream->Read(&message);
    v1::CoordinatorMessage answer;
    const auto map = *core::BuildFragmentMap(ManifestForTest(), 1, core::FragmentAssignment::kStrided);
    ToProto(map.manifest(), answer.mutable_welcome()->mutable_manifest());
    ToProto(map, answer.mutable_welcome()->mutable_fragments());
    stream->Write(answer);
    while (stream->Read(&message) && !message.has_leave()) continue;
    return grpc::Status::OK;
  }
  grpc::Status Upload(grpc::ServerContext*,
                      grpc::ServerReaderWriter<v1::UploadReply, v1::UploadMessage>* stream) override {
    v1::UploadMessage header, chunk;
    stream->Read(&header);
    stream->Read(&chunk);
    uploaded = chunk.chunk();
    v1::UploadReply reply;
    reply.mutable_verdict()->set_admitted(true);
    stream->Write(reply);
    return grpc::Status::OK;
  }
  grpc::Status Download(grpc::ServerContext*, const v1::DownloadRequest*,
                        grpc::ServerWriter<v1::DownloadMessage>* writer) override {
    v1::DownloadMessage header, chunk, end;
    header.mutable_header()->set_num_chunks(1);
    chunk.set_chunk("down");
    end.mutable_end()->set_digest(7);
    for (const v1::DownloadMessage& message : {header, chunk, end}) writer->Write(message);
    return grpc::Status::OK;
  }
};

class WelcomedListener final : public LinkListener {
 public:
  Standing GetStanding() override { return {.joining = true}; }
  void OnWelcome(const Welcome&) override { welcomed.set_value(); }
  void OnSeedRequest() override {}
  void OnEntry(const core::Entry&) override {}
  void OnNotice(const std::string&) override {}
  void OnDrain(const std::string&) override {}
  void OnHold(bool) override {}
  void OnFailure(const absl::Status& status) override { ADD_FAILURE() << status; }

  std::promise<void> welcomed;
};

TEST(GrpcLinkTest, ASiteJoinsUploadsDownloadsAndLeaves) {
  OneChunkCoordinator coordinator;
  int port = 0;
  grpc::ServerBuilder builder;
  ConfigureServer(builder);
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&coordinator);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  WelcomedListener listener;
  // It stays: gRPC's threads for callbacks end with the last channel, and gRPC 1.51 may crash when they do.
  static auto* const link = new GrpcLink({.coordinator = {"127.0.0.1", port}, .site = "a"});

  EXPECT_EQ(link->Describe([] { return false; })->run_id, "run");
  link->Start(ManifestForTest(), &listener);
  listener.welcomed.get_future().wait();
  std::promise<absl::Status> admitted, fetched;
  link->Upload({.chunks = std::make_shared<const std::vector<core::Bytes>>(1, std::string("up")),
                .done = [&](const absl::Status& status) { admitted.set_value(status); }});
  EXPECT_EQ(admitted.get_future().get(), absl::OkStatus());
  EXPECT_EQ(coordinator.uploaded, "up");
  std::vector<std::string> chunks;
  link->Download({.kind = DownloadKind::kAnchor,
                  .num_chunks = 1,
                  .on_header = [](const DownloadHeader&) {},
                  .on_chunk = [&](int, std::string chunk) { chunks.push_back(std::move(chunk)); },
                  .done =
                      [&](const absl::Status& status, uint64_t digest) {
                        EXPECT_EQ(digest, 7u);
                        fetched.set_value(status);
                      }});
  EXPECT_EQ(fetched.get_future().get(), absl::OkStatus());
  EXPECT_THAT(chunks, ElementsAre("down"));
  link->Leave(/*finished=*/true, "done");
  server->Shutdown();
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

const Address kThere{"hub", 7000};

v1::RunDescription OfShard(int shard, int num_shards) {
  v1::RunDescription description;
  description.set_shard(shard);
  description.set_num_shards(num_shards);
  return description;
}

TEST(MeaningOfAnAnswer, TheShardThatIsExpectedIsTheRun) {
  EXPECT_TRUE(MeaningOf(grpc::Status::OK, OfShard(1, 3), {1, 3}, kThere).ok());
  EXPECT_TRUE(MeaningOf(grpc::Status::OK, OfShard(0, 1), {0, 1}, kThere).ok());
  EXPECT_TRUE(MeaningOf(grpc::Status::OK, OfShard(0, 0), {0, 1}, kThere).ok()) << "a coordinator of before shards";
}

TEST(MeaningOfAnAnswer, AnotherShardIsRefusedWithBothAndTheFlag) {
  for (const auto& other : {OfShard(2, 3), OfShard(1, 2), OfShard(0, 0)}) {
    const absl::Status meaning = MeaningOf(grpc::Status::OK, other, {1, 3}, kThere);
    EXPECT_TRUE(absl::IsPermissionDenied(meaning)) << meaning;
    EXPECT_THAT(std::string(meaning.message()), HasSubstr("expected shard 1 of 3 at hub:7000, this is shard "));
    EXPECT_THAT(std::string(meaning.message()), HasSubstr("--coordinator"));
  }
}

TEST(MeaningOfAnAnswer, RefusalsAndOtherProgramsAreFinalAndAllElseIsAskedAgain) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status meaning = MeaningOf({static_cast<grpc::StatusCode>(code), "why"}, {}, {}, kThere);
    const bool final_answer = code == grpc::StatusCode::UNIMPLEMENTED ||
                              code == grpc::StatusCode::FAILED_PRECONDITION ||
                              code == grpc::StatusCode::PERMISSION_DENIED || code == grpc::StatusCode::UNAUTHENTICATED;
    EXPECT_EQ(absl::IsPermissionDenied(meaning), final_answer) << meaning;
    EXPECT_EQ(absl::IsUnavailable(meaning), !final_answer) << meaning;
    EXPECT_THAT(std::string(meaning.message()), HasSubstr("why"));
  }
}

constexpr KernelBuffers kLinuxDefaults = {.write = {4096, 16384, 4194304}, .read = {4096, 131072, 6291456}};

// With as many connections as the link chooses.
core::LinkProgress Link(double up_bytes_per_s, double down_bytes_per_s, double round_trip_s) {
  LinkMeter meter;
  meter.RoundTrip(round_trip_s);
  meter.Moved(LinkMeter::Direction::kUp, static_cast<int64_t>(up_bytes_per_s), 1);
  meter.Moved(LinkMeter::Direction::kDown, static_cast<int64_t>(down_bytes_per_s), 1);
  return meter.progress();
}

TEST(KernelBuffers, TheDefaultsAreEnoughForWhatSixteenConnectionsCarry) {
  EXPECT_EQ(BufferAdvice(Link(1.25e6, 1.25e6, 0.2), kLinuxDefaults), "");   // 10 Mbit/s
  EXPECT_EQ(BufferAdvice(Link(118e6, 118e6, 0.1), kLinuxDefaults), "");     // 1 Gbit/s
  EXPECT_EQ(BufferAdvice(Link(350e6, 350e6, 0.1), kLinuxDefaults), "");     // nearly 16 times 2.8 MB, with some room
  EXPECT_EQ(BufferAdvice(Link(1.2e9, 1.2e9, 0.0002), kLinuxDefaults), "");  // 10 Gbit/s, next door
}

TEST(KernelBuffers, ALinkThatSixteenConnectionsCannotFillNamesTheSysctlAndTheSize) {
  // 1.25 × 4 Gbit/s × 200 ms in 16 connections: 7.8 MB in flight each, 11.7 MB of write buffer, 15.6 of read buffer.
  EXPECT_THAT(BufferAdvice(Link(500e6, 1e6, 0.2), kLinuxDefaults),
              AllOf(HasSubstr("4000 Mbit/s over 200 ms"), HasSubstr("net.ipv4.tcp_wmem allows 4194304"),
                    HasSubstr("sysctl -w net.ipv4.tcp_wmem=\"4096 16384 12582912\""),
                    HasSubstr("net.ipv4.tcp_rmem at the coordinator"), Not(HasSubstr("sysctl -w net.ipv4.tcp_rmem"))));
  EXPECT_THAT(BufferAdvice(Link(1e6, 500e6, 0.2), kLinuxDefaults),
              HasSubstr("sysctl -w net.ipv4.tcp_rmem=\"4096 131072 15728640\""));
}

TEST(KernelBuffers, MaximaBelowWhatAConnectionIsCountedOnForMatterWhereTheLinkNeedsThem) {
  KernelBuffers small = kLinuxDefaults;
  small.write.most = 1 << 20;
  EXPECT_THAT(BufferAdvice(Link(118e6, 118e6, 0.1), small), HasSubstr("sysctl -w net.ipv4.tcp_wmem"));
  EXPECT_EQ(BufferAdvice(Link(1.25e6, 118e6, 0.001), small), "");
}

TEST(KernelBuffers, NothingIsSaidOfWhatIsNotKnown) {
  EXPECT_EQ(BufferAdvice(Link(500e6, 500e6, 0.2), {}), "");
  EXPECT_EQ(BufferAdvice({}, kLinuxDefaults), "");
}

TEST(KernelBuffers, ReadsTheThreeNumbersOfTheKernel) {
  const BufferSizes sizes = ParseBufferSizes("4096\t16384\t4194304\n");
  EXPECT_EQ(sizes.least, 4096);
  EXPECT_EQ(sizes.initial, 16384);
  EXPECT_EQ(sizes.most, 4194304);
  EXPECT_EQ(ParseBufferSizes("").most, 0);
  EXPECT_EQ(ParseBufferSizes("4096 many").most, 0);
}

}  // namespace
}  // namespace causeway::transport
