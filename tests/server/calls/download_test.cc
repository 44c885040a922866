#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "tests/server/calls/coordinator_for_test.h"

namespace causeway::server {
namespace {

using ::testing::ElementsAre;

v1::DownloadRequest UpdateOf(int fragment, int64_t base) {
  v1::DownloadRequest request;
  *request.mutable_context() = ContextForTest("a");
  request.set_fragment(fragment);
  request.set_update_base(base);
  return request;
}

struct Downloaded {
  v1::DownloadHeader header;
  std::vector<std::string> chunks;
  uint64_t digest = 0;
  grpc::Status status;
};

Downloaded ReadAllOf(grpc::ClientReader<v1::DownloadMessage>& reader) {
  Downloaded downloaded;
  v1::DownloadMessage message;
  while (reader.Read(&message)) {
    if (message.has_header()) downloaded.header = message.header();
    if (message.has_chunk()) downloaded.chunks.push_back(message.chunk());
    if (message.has_end()) downloaded.digest = message.end().digest();
  }
  downloaded.status = reader.Finish();
  return downloaded;
}

TEST(Download, OfAFragmentOrUpdateThatIsNotThereIsRefused) {
  CoordinatorForTest run;
  run.Start();
  const auto code = [&](int fragment, int64_t base) {
    grpc::ClientContext context;
    return ReadAllOf(*run.stub->Download(&context, UpdateOf(fragment, base))).status.error_code();
  };
  EXPECT_EQ(code(2, 0), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(code(-1, 0), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(code(0, 1), grpc::StatusCode::NOT_FOUND);
}

TEST(Download, ParksUntilTheRoundClosesAndGoesOnAtTheFirstChunkAskedFor) {
  CoordinatorForTest run;
  run.Start();
  grpc::ClientContext context;
  const auto parked = run.stub->Download(&context, UpdateOf(0, 0));
  run.Contribute("a", 0);
  run.Contribute("b", 0);
  const Downloaded whole = ReadAllOf(*parked);
  ASSERT_TRUE(whole.status.ok());
  EXPECT_EQ(whole.header.version(), 1);
  EXPECT_THAT(whole.header.merged(), ElementsAre("a", "b"));
  ASSERT_EQ(whole.chunks.size(), 3u);
  EXPECT_EQ(whole.header.num_chunks(), 3);

  v1::DownloadRequest rest = UpdateOf(0, 0);
  rest.set_first_chunk(2);
  grpc::ClientContext second;
  const Downloaded resumed = ReadAllOf(*run.stub->Download(&second, rest));
  EXPECT_THAT(resumed.chunks, ElementsAre(whole.chunks[2]));
  EXPECT_EQ(resumed.digest, whole.digest);
}

TEST(Download, StripesCarryEveryChunkOnce) {
  CoordinatorForTest run;
  run.Start();
  run.Contribute("a", 0);
  run.Contribute("b", 0);
  const auto download = [&](int stripe, int stripes, int first_chunk) {
    v1::DownloadRequest request = UpdateOf(0, 0);
    request.set_stripe(stripe);
    request.set_num_stripes(stripes);
    request.set_first_chunk(first_chunk);
    grpc::ClientContext context;
    return ReadAllOf(*run.stub->Download(&context, request));
  };
  const Downloaded whole = download(0, 1, 0);
  const Downloaded even = download(0, 2, 0), odd = download(1, 2, 0);
  EXPECT_THAT(even.chunks, ElementsAre(whole.chunks[0], whole.chunks[2]));
  EXPECT_THAT(odd.chunks, ElementsAre(whole.chunks[1]));
  EXPECT_EQ(even.digest, whole.digest);
  EXPECT_EQ(odd.digest, whole.digest);
  EXPECT_THAT(download(0, 2, 1).chunks, ElementsAre(whole.chunks[2]));  // one of the stripe is held
  EXPECT_EQ(download(2, 2, 0).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(download(0, 1, -1).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

}  // namespace
}  // namespace causeway::server
