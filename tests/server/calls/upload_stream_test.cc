// An upload, message by message: the chunks that the coordinator requests, in any order, and the verdict.
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
using Stream = CalledStream<grpc::ByteBuffer, grpc::ByteBuffer>;

class UploadStream : public testing::Test {
 protected:
  UploadStream() { run_.Start(); }

  void Open(Stream& stream, const v1::UploadHeader& header) {
    stream.Bind(NewUploadReactor(run_.coordinator.get(), Gate::Open(), {}));
    v1::UploadMessage message;
    *message.mutable_header() = header;
    stream.Deliver(transport::ToBytes(message));
  }
  void SendChunk(Stream& stream, size_t index) { SendBytes(stream, chunks_[index]); }
  static void SendBytes(Stream& stream, const std::string& chunk) {
    stream.Deliver(transport::ChunkMessage(std::make_shared<const std::string>(chunk)));
  }
  static v1::UploadHeader Header(const std::string& site = "a", int64_t base = 0) { return HeaderOf(site, 0, base); }
  static std::vector<int> MissingIn(const Stream& stream) {
    const auto replies = MessagesOf<v1::UploadReply>(stream);
    if (replies.empty() || !replies[0].has_missing()) return {-1};
    return {replies[0].missing().chunks().begin(), replies[0].missing().chunks().end()};
  }
  static bool Admitted(const Stream& stream) {
    const auto replies = MessagesOf<v1::UploadReply>(stream);
    return !replies.empty() && replies.back().verdict().admitted() && stream.finished()->ok();
  }
  std::string RefusalOf(const v1::UploadHeader& header) {
    Stream stream;
    Open(stream, header);
    run_.Settle();
    const auto replies = MessagesOf<v1::UploadReply>(stream);
    return replies.empty() ? stream.finished()->error_message() : replies.back().verdict().reason();
  }

  DirectCoordinator run_;
  const std::vector<std::string> chunks_ = ChunksOf(run_.map.fragment(0), core::CodecId::kInt4, 1);
};

TEST_F(UploadStream, AsksForAllChunksAndTakesThemInAnyOrderAndTwice) {
  Stream stream;
  Open(stream, Header());
  EXPECT_THAT(MissingIn(stream), ElementsAre(0, 1, 2));
  stream.CompleteWrite();
  for (const size_t index : {2, 0, 2, 0, 1}) SendChunk(stream, index);
  run_.Settle();
  EXPECT_TRUE(Admitted(stream));
}

TEST_F(UploadStream, VerdictWaitsForTheListOfChunksThatIsStillOnItsWay) {
  Stream stream;
  Open(stream, Header());
  ASSERT_TRUE(stream.writing());
  for (const size_t index : {0, 1, 2}) SendChunk(stream, index);
  run_.Settle();
  EXPECT_FALSE(stream.finished());
  stream.CompleteWrite();
  EXPECT_TRUE(Admitted(stream));
}

TEST_F(UploadStream, SecondStreamOfTheSameContributionSendsWhatTheFirstHasNot) {
  Stream first, second;
  Open(first, Header());
  SendChunk(first, 1);
  Open(second, Header());
  EXPECT_THAT(MissingIn(second), ElementsAre(0, 2));
  SendChunk(second, 0);
  first.CompleteWrite();
  SendChunk(first, 2);
  run_.Settle();
  EXPECT_TRUE(Admitted(first));
  EXPECT_FALSE(second.finished());
  second.CompleteWrite();
  SendChunk(second, 2);  // a repeat
  run_.Settle();
  EXPECT_TRUE(Admitted(second)) << "the contribution is complete by now";
  run_.Contribute("b", 0);
  EXPECT_THAT(run_.TakeUpdate(0, 0).header.merged, ElementsAre("a", "b"));
}

TEST_F(UploadStream, VerdictComesAgainToARepeatThatIsMergedByNow) {
  run_.MergeRound(0, 0);
  Stream stream;
  Open(stream, Header());
  run_.Settle();
  EXPECT_TRUE(Admitted(stream));
  EXPECT_THAT(MessagesOf<v1::UploadReply>(stream), SizeIs(1)) << "it requests no chunk";
}

TEST_F(UploadStream, WhatCannotBeMergedIsRefusedBeforeItsChunksAreAskedFor) {
  EXPECT_THAT(RefusalOf(Header("a", 1)), HasSubstr("the open round of fragment 0 is of base version 0"));
  EXPECT_THAT(RefusalOf(Header("c")), HasSubstr("site c is not in the run with this session"));
  EXPECT_THAT(RefusalOf(HeaderOf("a", 7)), HasSubstr("expected a fragment from 0 to 1, got 7"));
  v1::UploadHeader negative = Header();
  negative.set_tokens(-1);
  Stream stream;
  Open(stream, negative);
  ASSERT_TRUE(stream.finished());
  EXPECT_EQ(stream.finished()->error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(stream.finished()->error_message(), HasSubstr("header.tokens: expected 0 to "));
  v1::UploadHeader initial = Header();
  initial.set_initial(true);
  EXPECT_EQ(RefusalOf(initial), "") << "a repeat of the seed, which is durable";
}

TEST_F(UploadStream, OfAnotherGenerationEndsWithAStatusAndTheContributionIsUntouched) {
  v1::UploadHeader header = Header();
  header.set_generation(0);
  Stream stale;
  Open(stale, header);
  ASSERT_TRUE(stale.finished());
  EXPECT_EQ(stale.finished()->error_code(), grpc::StatusCode::ABORTED);
  header.set_generation(1);
  Stream current;
  Open(current, header);
  EXPECT_THAT(MissingIn(current), ElementsAre(0, 1, 2));
}

TEST_F(UploadStream, SiteThatIsDroppedMeanwhileIsRefusedAndItsChunksAreLetGo) {
  Stream stream;
  Open(stream, Header());
  stream.CompleteWrite();
  SendChunk(stream, 0);
  SendChunk(stream, 1);
  run_.Leave("a");
  SendChunk(stream, 2);
  run_.Settle();
  const auto replies = MessagesOf<v1::UploadReply>(stream);
  EXPECT_FALSE(replies.back().verdict().admitted());
  EXPECT_THAT(replies.back().verdict().reason(), HasSubstr("not in the run with this session"));
}

TEST_F(UploadStream, ThatIsBegunAnewByAnotherProcessIsToldSo) {
  Stream older;
  Open(older, Header());
  older.CompleteWrite();
  for (const size_t index : {0, 1}) SendChunk(older, index);
  run_.Join("a", [](v1::Join& join) {
    for (int p = 0; p < 2; ++p) join.add_versions(0);
    join.set_from_checkpoint(true);
  });
  Stream newer;
  Open(newer, Header());
  EXPECT_THAT(MissingIn(newer), ElementsAre(0, 1, 2));
  SendChunk(older, 2);
  run_.Settle();
  EXPECT_EQ(MessagesOf<v1::UploadReply>(older).back().verdict().reason(), "the site has begun this contribution anew");
  newer.CompleteWrite();
  for (const size_t index : {0, 1, 2}) SendChunk(newer, index);
  run_.Settle();
  EXPECT_TRUE(Admitted(newer));
}

TEST_F(UploadStream, ThatBreaksKeepsItsChunksAndSaysThatItWasCut) {
  {
    Stream stream;
    Open(stream, Header());
    stream.CompleteWrite();
    SendChunk(stream, 2);
    stream.HalfClose();
    ASSERT_TRUE(stream.finished());
    EXPECT_EQ(stream.finished()->error_code(), grpc::StatusCode::ABORTED);
    EXPECT_EQ(stream.finished()->error_message(), "the upload ended before it was complete");
  }
  Stream rest;
  Open(rest, Header());
  EXPECT_THAT(MissingIn(rest), ElementsAre(0, 1));
}

TEST_F(UploadStream, ThatIsCancelledWhileItsVerdictIsOnTheWayIsAdmittedAllTheSame) {
  {
    const HeldJournal held(*run_.journal);
    Stream stream;
    Open(stream, Header());
    stream.CompleteWrite();
    for (const size_t index : {0, 1, 2}) SendChunk(stream, index);
    stream.Break();
    EXPECT_EQ(stream.finished()->error_code(), grpc::StatusCode::CANCELLED);
  }
  run_.Settle();
  EXPECT_THAT(run_.coordinator->Status().fragments[0].contributors, ElementsAre("a"));
}

TEST_F(UploadStream, MessageThatIsNeitherHeaderNorChunkEndsIt) {
  Stream begins_wrongly;
  begins_wrongly.Bind(NewUploadReactor(run_.coordinator.get(), Gate::Open(), {}));
  SendChunk(begins_wrongly, 0);
  ASSERT_TRUE(begins_wrongly.finished());
  EXPECT_EQ(begins_wrongly.finished()->error_message(), "expected a header first, got a chunk");
  Stream goes_on_wrongly;
  Open(goes_on_wrongly, Header());
  v1::UploadMessage header;
  *header.mutable_header() = Header();
  goes_on_wrongly.Deliver(transport::ToBytes(header));
  ASSERT_TRUE(goes_on_wrongly.finished());
  EXPECT_EQ(goes_on_wrongly.finished()->error_message(), "fragment 0 from a: expected a chunk, got something else");
  Stream too_large;
  Open(too_large, Header());
  SendBytes(too_large, chunks_[0] + std::string(core::kMaxChunkBytes, 'x'));
  ASSERT_TRUE(too_large.finished());
  EXPECT_EQ(too_large.finished()->error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(run_.coordinator->Status().fragments[0].contributors, IsEmpty());
}

TEST_F(UploadStream, BytesAreCountedForItsSite) {
  Stream stream;
  Open(stream, Header());
  const int64_t before = run_.StatusOf("a").up_bytes;
  SendChunk(stream, 0);
  EXPECT_EQ(run_.StatusOf("a").up_bytes - before,
            static_cast<int64_t>(transport::ChunkMessage(std::make_shared<const std::string>(chunks_[0])).Length()));
  EXPECT_EQ(run_.StatusOf("b").up_bytes, 0);
}

// A download, write by write: what waits, what goes on, what ends, and what is counted.

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
