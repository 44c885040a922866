// A download, write by write: what waits, what goes on, what ends, and what is counted.
#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include "server/calls/gate.h"
#include "server/calls/reactors.h"
#include "tests/server/calls/called_stream.h"
#include "tests/server/run/direct_coordinator.h"

namespace causeway::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class DownloadStream : public testing::Test {
 protected:
  DownloadStream() { run_.Start(); }

  static v1::DownloadRequest UpdateOf(int fragment, int64_t base, const std::string& site = "a") {
    v1::DownloadRequest request = DirectCoordinator::RequestOf(site, fragment);
    request.set_update_base(base);
    return request;
  }
  static v1::DownloadRequest AnchorOf(int fragment, int64_t version) {
    v1::DownloadRequest request = DirectCoordinator::RequestOf("a", fragment);
    request.set_anchor_version(version);
    return request;
  }

  void Open(CalledDownload& stream, const v1::DownloadRequest& request, Gate* gate = Gate::Open()) {
    stream.Bind(NewDownloadReactor(run_.coordinator.get(), gate, {}));
    stream.Deliver(transport::ToBytes(request));
  }
  // All that the coordinator sends, up to the end.
  std::vector<v1::DownloadMessage> ReadAll(const v1::DownloadRequest& request) {
    CalledDownload stream;
    Open(stream, request);
    stream.CompleteWrites();
    EXPECT_TRUE(stream.finished() && stream.finished()->ok());
    return MessagesOf<v1::DownloadMessage>(stream);
  }
  static std::vector<std::string> ChunksIn(const std::vector<v1::DownloadMessage>& messages) {
    std::vector<std::string> chunks;
    for (const v1::DownloadMessage& message : messages) {
      if (message.has_chunk()) chunks.push_back(message.chunk());
    }
    return chunks;
  }
  std::string RefusalOf(const v1::DownloadRequest& request,
                        grpc::StatusCode code = grpc::StatusCode::INVALID_ARGUMENT) {
    CalledDownload stream;
    Open(stream, request);
    EXPECT_THAT(stream.written(), IsEmpty());
    EXPECT_TRUE(stream.finished());
    EXPECT_EQ(stream.finished()->error_code(), code);
    return stream.finished()->error_message();
  }

  DirectCoordinator run_;
};

TEST_F(DownloadStream, HeaderChunksAndEndComeOneAtATime) {
  const TakenDownload update = run_.MergeRound(0, 0);
  CalledDownload stream;
  Open(stream, UpdateOf(0, 0));
  EXPECT_THAT(stream.written(), SizeIs(1));
  stream.CompleteWrite();
  EXPECT_THAT(stream.written(), SizeIs(2));
  EXPECT_FALSE(stream.finished());
  stream.CompleteWrites();
  const auto messages = MessagesOf<v1::DownloadMessage>(stream);
  ASSERT_THAT(messages, SizeIs(5));
  EXPECT_EQ(messages[0].header().num_chunks(), 3);
  EXPECT_THAT(ChunksIn(messages), ElementsAre(update.chunks[0], update.chunks[1], update.chunks[2]));
  EXPECT_EQ(messages[4].end().digest(), update.digest);
  EXPECT_TRUE(stream.finished()->ok());
}

TEST_F(DownloadStream, RequestsThatMakeNoSenseAreRefused) {
  v1::DownloadRequest request = UpdateOf(0, 0);
  request.set_num_stripes(17);
  EXPECT_EQ(RefusalOf(request), "num_stripes: expected 0 to 16, got 17");
  request.set_num_stripes(2);
  request.set_stripe(2);
  EXPECT_EQ(RefusalOf(request), "expected a stripe below 2, got stripe 2");
  RefusalOf(UpdateOf(1 << 30, 0));
  RefusalOf(UpdateOf(1023, 0));
  RefusalOf(UpdateOf(0, -1));
  RefusalOf(UpdateOf(0, int64_t{1} << 50), grpc::StatusCode::NOT_FOUND);
  v1::DownloadRequest padded = UpdateOf(0, 0);  // with a field of a newer version
  padded.GetReflection()->MutableUnknownFields(&padded)->AddLengthDelimited(100,
                                                                            std::string(core::kMaxQuestionBytes, 'x'));
  EXPECT_THAT(RefusalOf(padded, grpc::StatusCode::RESOURCE_EXHAUSTED),
              HasSubstr("expected a message of at most 65536"));
  const grpc::Slice slice("\xff\xff\xff");
  CalledDownload noise;
  noise.Bind(NewDownloadReactor(run_.coordinator.get(), Gate::Open(), {}));
  noise.Deliver(grpc::ByteBuffer(&slice, 1));
  ASSERT_TRUE(noise.finished());
  EXPECT_EQ(noise.finished()->error_message(), "DownloadRequest: the message is truncated");
}

TEST_F(DownloadStream, MoreChunksHeldThanThereAreEndsWithTheDigest) {
  const TakenDownload update = run_.MergeRound(0, 0);
  for (const int held : {3, 4, std::numeric_limits<int>::max()}) {
    v1::DownloadRequest request = UpdateOf(0, 0);
    request.set_first_chunk(held);
    request.set_num_stripes(2);
    request.set_stripe(1);
    const auto messages = ReadAll(request);
    EXPECT_THAT(ChunksIn(messages), IsEmpty()) << held;
    EXPECT_EQ(messages.back().end().digest(), update.digest);
  }
}

TEST_F(DownloadStream, AnchorGoesOnWhereItWasCutOnlyInTheSameVersion) {
  const auto whole = ChunksIn(ReadAll(AnchorOf(0, 0)));
  ASSERT_THAT(whole, SizeIs(6)) << "anchor and momentum of three tensors";
  v1::DownloadRequest request = AnchorOf(0, 0);
  request.set_first_chunk(2);
  request.set_held_version(0);
  EXPECT_EQ(ChunksIn(ReadAll(request)), std::vector<std::string>(whole.begin() + 2, whole.end()));
  request.set_held_version(4);
  EXPECT_EQ(ChunksIn(ReadAll(request)), whole) << "chunks of another version are of no use";
}

TEST_F(DownloadStream, AnchorThatIsWantedNewerWaitsForItsMergeAndComesFromASnapshotOfIt) {
  CalledDownload stream;
  Open(stream, AnchorOf(0, 1));
  EXPECT_FALSE(stream.writing());
  const TakenDownload update = run_.MergeRound(0, 0);
  EXPECT_EQ(run_.TakeAnchor(0, 1).digest, update.digest);
  ASSERT_TRUE(run_.coordinator->Finish().ok());  // who waited is answered by then
  stream.CompleteWrites();
  const auto messages = MessagesOf<v1::DownloadMessage>(stream);
  EXPECT_EQ(messages.at(0).header().version(), 1);
  EXPECT_EQ(messages.back().end().digest(), update.digest);
}

TEST_F(DownloadStream, AnchorThatTheSiteHoldsAlreadyIsItsDigestAlone) {
  const uint64_t digest = run_.TakeAnchor(1, 0).digest;
  v1::DownloadRequest request = AnchorOf(1, 0);
  request.set_held_digest(digest);
  const auto messages = ReadAll(request);
  ASSERT_THAT(messages, SizeIs(2));
  EXPECT_TRUE(messages[0].header().already_held());
  EXPECT_EQ(messages[0].header().num_chunks(), 0);
  EXPECT_EQ(messages[1].end().digest(), digest);
}

TEST_F(DownloadStream, WeightsAndGenerationComeToThoseWhoAskForThem) {
  run_.MergeRound(0, 0);
  const v1::DownloadHeader plain = ReadAll(UpdateOf(0, 0))[0].header();
  EXPECT_THAT(plain.merged(), ElementsAre("a", "b"));
  EXPECT_THAT(plain.merged_bases(), ElementsAre(0, 0));
  EXPECT_THAT(plain.merged_weights(), IsEmpty());
  EXPECT_FALSE(plain.has_generation());
  EXPECT_EQ(plain.run_tokens(), 0);
  v1::DownloadRequest request = UpdateOf(0, 0);
  request.set_wants_weights(true);
  request.set_wants_run_tokens(true);
  request.set_generation(1);
  const v1::DownloadHeader full = ReadAll(request)[0].header();
  EXPECT_THAT(full.merged_weights(), ElementsAre(0.5, 0.5));
  EXPECT_EQ(full.generation(), 1u);
  EXPECT_EQ(full.run_tokens(), 16);
}

TEST_F(DownloadStream, GenerationThatIsNotTheModelsIsRefusedBeforeAByteIsSent) {
  v1::DownloadRequest request = UpdateOf(0, 0);
  request.set_generation(0);
  RefusalOf(request, grpc::StatusCode::ABORTED);
  request.set_generation(2);
  RefusalOf(request, grpc::StatusCode::UNAVAILABLE);
}

TEST_F(DownloadStream, WaitsForItsRoundAndGoesOnWithoutBeingAsked) {
  CalledDownload first, second;
  Open(first, UpdateOf(0, 0));
  Open(second, UpdateOf(0, 0, "b"));
  EXPECT_FALSE(first.writing());
  const TakenDownload update = run_.MergeRound(0, 0);
  ASSERT_TRUE(run_.coordinator->Finish().ok());
  for (CalledDownload* stream : {&first, &second}) {
    stream->CompleteWrites();
    const auto messages = MessagesOf<v1::DownloadMessage>(*stream);
    EXPECT_EQ(ChunksIn(messages), update.chunks);
    EXPECT_EQ(messages.back().end().digest(), update.digest);
  }
}

TEST_F(DownloadStream, ThatIsCancelledWhileItWaitsIsForgotten) {
  {
    CalledDownload stream;
    Open(stream, UpdateOf(0, 0));
    stream.Break();
    EXPECT_EQ(stream.finished()->error_code(), grpc::StatusCode::CANCELLED);
  }
  EXPECT_EQ(run_.MergeRound(0, 0).header.version, 1);  // wakes who waits
}

TEST_F(DownloadStream, OnlyOneThatWasSentWholeIsLoggedAsTaken) {
  run_.MergeRound(0, 0);
  const auto downloads = [&] { return run_.coordinator->Status().rounds.at(0)->downloads; };
  {
    CalledDownload stream;
    Open(stream, UpdateOf(0, 0));
    stream.CompleteWrite();
    stream.Break();
  }
  EXPECT_THAT(downloads(), IsEmpty());
  ReadAll(UpdateOf(0, 0));
  ASSERT_THAT(downloads(), SizeIs(1));
  EXPECT_EQ(downloads()[0].site, "a");
  EXPECT_TRUE(downloads()[0].taken_unix_ms);
}

TEST_F(DownloadStream, BytesAreCountedForItsSite) {
  run_.MergeRound(0, 0);
  int64_t bytes = 0;
  CalledDownload stream;
  Open(stream, UpdateOf(0, 0));
  stream.CompleteWrites();
  const auto written = stream.written();
  for (const grpc::ByteBuffer& message : written) bytes += static_cast<int64_t>(message.Length());
  bytes -= static_cast<int64_t>(written.back().Length());  // the end is no payload
  EXPECT_EQ(run_.StatusOf("a").down_bytes, bytes);
  EXPECT_EQ(run_.StatusOf("b").down_bytes, 0);
}

TEST_F(DownloadStream, CountsAsOneOfItsSitesStreamsUntilItsEnd) {
  const auto gate = *Gate::Create({.limits = {.bulk_streams_at_once = 1}, .clock = &run_.clock});
  CalledDownload waits, refused, later;
  Open(waits, UpdateOf(0, 0), gate.get());
  EXPECT_FALSE(waits.finished());
  Open(refused, UpdateOf(0, 0), gate.get());
  ASSERT_TRUE(refused.finished());
  EXPECT_EQ(refused.finished()->error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  waits.Break();
  Open(later, UpdateOf(0, 0), gate.get());
  EXPECT_FALSE(later.finished());
}

}  // namespace
}  // namespace causeway::server
