// A link over real gRPC, once through a session. All that may go wrong is held in virtual time (virtual_*_test.cc).
#include "transport/grpc_link.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <future>

#include "causeway/v1/coordinator.grpc.pb.h"
#include "core/run_config.h"
#include "transport/messages.h"

namespace causeway::transport {
namespace {

using ::testing::ElementsAre;

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

}  // namespace
}  // namespace causeway::transport
