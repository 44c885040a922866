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

namespace causeway::transport {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

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

}  // namespace
}  // namespace causeway::transport
