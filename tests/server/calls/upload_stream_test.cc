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

}  // namespace
}  // namespace causeway::server
