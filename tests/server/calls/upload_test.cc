#include <gmock/gmock-matchers.h>
#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include "tests/server/calls/coordinator_for_test.h"
#include "tests/server/run/direct_coordinator.h"

namespace causeway::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class Upload : public testing::Test {
 protected:
  Upload() { run_.Start(); }

  std::vector<std::string> Good() const { return ChunksOf(run_.map.fragment(0), core::CodecId::kInt4, 1); }

  CoordinatorForTest run_;
};

TEST_F(Upload, DamagedChunkIsRefusedAndTheGoodOneIsTakenAfterwards) {
  std::vector<std::string> truncated = Good();
  truncated[1].resize(truncated[1].size() - 3);
  std::vector<std::string> flipped = Good();
  flipped[1][100] ^= 0x10;
  std::vector<std::string> elsewhere = Good();
  elsewhere[1] = *codecs::EncodeChunk({core::CodecId::kInt4, 0, 300}, std::vector<float>(300), {});
  // Chunk 0 is spooled by the first attempt and stays; chunk 1 is what is missing from then on.
  for (const auto& damaged : {truncated, flipped, elsewhere}) {
    const UploadOutcome outcome = run_.Upload(HeaderOf("a", 0), damaged);
    EXPECT_EQ(outcome.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(outcome.status.error_message(), HasSubstr("fragment 0 from a: "));
    EXPECT_FALSE(outcome.verdict);
  }
  const UploadOutcome good = run_.Upload(HeaderOf("a", 0), Good());
  EXPECT_THAT(good.missing, ElementsAre(1, 2));
  EXPECT_TRUE(good.admitted());
}

TEST_F(Upload, RepeatIsAnsweredAdmitted) {
  EXPECT_TRUE(run_.Contribute("a", 0).admitted());
  const UploadOutcome repeat = run_.Contribute("a", 0);
  EXPECT_TRUE(repeat.admitted());
  EXPECT_THAT(repeat.missing, IsEmpty());
  EXPECT_TRUE(run_.Contribute("b", 0).admitted());  // closes the round
  EXPECT_TRUE(run_.Contribute("a", 0).admitted());
  EXPECT_EQ(run_.coordinator->Describe().versions_size(), 2);
}

TEST_F(Upload, GoesOnWhereItWasCut) {
  const UploadOutcome cut = run_.Upload(HeaderOf("a", 0), Good(), /*limit=*/2);
  EXPECT_EQ(cut.status.error_code(), grpc::StatusCode::ABORTED);
  const UploadOutcome rest = run_.Upload(HeaderOf("a", 0), Good());
  EXPECT_THAT(rest.missing, ElementsAre(2));
  EXPECT_TRUE(rest.admitted());
}

TEST_F(Upload, StripesCarryTheirChunksAndTheLastOneHasTheVerdict) {
  v1::UploadHeader header = HeaderOf("a", 0);
  header.set_num_stripes(2);
  const UploadOutcome even = run_.Upload(header, Good());
  EXPECT_THAT(even.missing, ElementsAre(0, 2));
  EXPECT_TRUE(even.status.ok());
  EXPECT_FALSE(even.verdict);
  header.set_stripe(1);
  const UploadOutcome odd = run_.Upload(header, Good());
  EXPECT_THAT(odd.missing, ElementsAre(1));
  EXPECT_TRUE(odd.admitted());
}

TEST_F(Upload, StripeThatIsThereEndsAtOnceAndOneThatIsCutIsToldSo) {
  v1::UploadHeader header = HeaderOf("a", 0);
  header.set_num_stripes(2);
  EXPECT_EQ(run_.Upload(header, Good(), /*limit=*/1).status.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_THAT(run_.Upload(header, Good()).missing, ElementsAre(2));
  const UploadOutcome again = run_.Upload(header, Good());
  EXPECT_THAT(again.missing, IsEmpty());
  EXPECT_TRUE(again.status.ok());
  EXPECT_FALSE(again.verdict);
}

TEST_F(Upload, StripeThatThereIsNotIsRefused) {
  for (const auto& [stripe, stripes] : {std::pair(2, 2), std::pair(-1, 2), std::pair(0, 17), std::pair(1, 0)}) {
    v1::UploadHeader header = HeaderOf("a", 0);
    header.set_stripe(stripe);
    header.set_num_stripes(stripes);
    EXPECT_EQ(run_.Upload(header, Good()).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  }
}

TEST_F(Upload, ThatSendsAllIsNotAskedToWait) {
  v1::UploadHeader header = HeaderOf("a", 0);
  header.set_sends_all(true);
  grpc::ClientContext context;
  const auto stream = run_.stub->Upload(&context);
  v1::UploadMessage message;
  *message.mutable_header() = header;
  stream->Write(message);
  for (const std::string& chunk : Good()) {
    message.set_chunk(chunk);
    stream->Write(message);
  }
  v1::UploadReply reply;
  ASSERT_TRUE(stream->Read(&reply));
  EXPECT_TRUE(reply.has_verdict());
  EXPECT_TRUE(reply.verdict().admitted());
}

TEST_F(Upload, OfAnotherRunOrLifeIsRefusedWithBothValues) {
  const auto refusal = [&](const std::function<void(v1::Context&)>& change) {
    v1::UploadHeader header = HeaderOf("a", 0);
    change(*header.mutable_context());
    const UploadOutcome outcome = run_.Upload(header, Good());
    EXPECT_EQ(outcome.status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
    return outcome.status.error_message();
  };
  EXPECT_THAT(refusal([](v1::Context& c) { c.set_run_id("other"); }), HasSubstr("expected run test, got other"));
  EXPECT_THAT(refusal([](v1::Context& c) { c.set_protocol(9); }), HasSubstr("expected protocol 1, got 9"));
  EXPECT_THAT(refusal([](v1::Context& c) { c.set_epoch(5); }), HasSubstr("has seen epoch 5"));
  EXPECT_THAT(refusal([](v1::Context& c) { c.set_lineage("x"); }), HasSubstr("of lineage x"));
}

TEST_F(Upload, OfAnotherSessionOrBaseIsRefusedByVerdict) {
  v1::UploadHeader header = HeaderOf("a", 0);
  header.mutable_context()->set_session("a-2");
  EXPECT_THAT(run_.Upload(header, Good()).verdict->reason(), HasSubstr("not in the run with this session"));
  EXPECT_THAT(run_.Contribute("a", 0, /*base=*/1).verdict->reason(), HasSubstr("the contribution is of 1"));
}

TEST(Join, ModelThatDiffersIsRefusedWithTheFirstDifference) {
  CoordinatorForTest run;
  EXPECT_TRUE(run.Join("a").has_welcome());
  core::Manifest other = ManifestForTest();
  other[2].shape = {10, 11};
  const v1::CoordinatorMessage answer = run.Join("b", other);
  ASSERT_TRUE(answer.has_refused());
  EXPECT_THAT(answer.refused().reason(), HasSubstr("at tensor 2: expected c [10,10] matrix of layer 0, got c [10,11]"));
  EXPECT_EQ(answer.refused().retry_after_ms(), 0);
}

TEST(Join, ModelOfAFirstSiteThatIsGoneBeforeTheSeedBindsNobody) {
  CoordinatorForTest run;
  core::Manifest mistaken = ManifestForTest();
  mistaken[2].shape = {10, 11};
  EXPECT_TRUE(run.Join("a", mistaken).has_welcome());
  run.Leave("a");
  EXPECT_TRUE(run.Join("b").has_welcome());
}

TEST(Join, OfAnotherRunIsRefused) {
  CoordinatorForTest run;
  const auto answer = run.Join("a", ManifestForTest(), [](v1::Context& context) { context.set_run_id("other"); });
  EXPECT_THAT(answer.refused().reason(), HasSubstr("expected run test, got other"));
}

// Both leases end in one Tick: the round closes with what the first one contributed.
TEST(Leases, ThatEndTogetherDoNotLoseAnAdmittedContribution) {
  DirectCoordinator run;
  run.Start();
  run.Contribute("a", 0);
  run.TickAt(ConfigForTest().membership.lease_ms);
  EXPECT_EQ(run.TakeUpdate(0, 0).header.merged, std::vector<std::string>{"a"});
}

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

// The calls of one question and one answer, over gRPC: what operators and causewayctl ask.

class GrpcServiceTest : public testing::Test {
 protected:
  template <typename Request, typename Response>
  using Method = grpc::Status (v1::Coordinator::Stub::*)(grpc::ClientContext*, const Request&, Response*);

  template <typename Request, typename Response>
  Response Call(Method<Request, Response> method, const Request& request,
                grpc::StatusCode expected = grpc::StatusCode::OK) {
    grpc::ClientContext context;
    Response response;
    status_ = (run_.stub.get()->*method)(&context, request, &response);
    EXPECT_EQ(status_.error_code(), expected) << status_.error_message();
    return response;
  }
  template <typename Request>
  static Request Asked() {
    Request request;
    *request.mutable_context() = ContextForTest("");
    return request;
  }
  v1::ChangeRunResponse Change(v1::ChangeRunRequest::Change change, grpc::StatusCode expected = grpc::StatusCode::OK) {
    auto request = Asked<v1::ChangeRunRequest>();
    request.set_change(change);
    return Call(&v1::Coordinator::Stub::ChangeRun, request, expected);
  }
  void Drain(const std::string& site, grpc::StatusCode expected = grpc::StatusCode::OK) {
    auto request = Asked<v1::DrainRequest>();
    request.set_site(site);
    Call(&v1::Coordinator::Stub::DrainSite, request, expected);
  }
  std::vector<v1::HistoryEvent> History(int64_t after_id, int limit) {
    auto request = Asked<v1::HistoryRequest>();
    request.set_after_id(after_id);
    request.set_limit(limit);
    const auto response = Call(&v1::Coordinator::Stub::GetHistory, request);
    return {response.events().begin(), response.events().end()};
  }

  CoordinatorForTest run_;
  grpc::Status status_;
};

TEST_F(GrpcServiceTest, DescribeSaysWhichRunItIsAndItsVersionsOnceThereAre) {
  const auto request = Asked<v1::DescribeRequest>();
  v1::RunDescription run = Call(&v1::Coordinator::Stub::Describe, request);
  EXPECT_EQ(run.protocol(), transport::kProtocol);
  EXPECT_EQ(run.run_id(), "test");
  EXPECT_EQ(run.epoch(), 1u);
  EXPECT_FALSE(run.lineage().empty());
  EXPECT_EQ(run.num_shards(), 1);
  EXPECT_FALSE(run.has_manifest());
  run_.Start();
  run = Call(&v1::Coordinator::Stub::Describe, request);
  EXPECT_EQ(run.fragments_size(), 2);
  EXPECT_THAT(run.versions(), ElementsAre(0, 0));
}

TEST_F(GrpcServiceTest, StatusIsTheJsonThatHttpAnswers) {
  EXPECT_EQ(Call(&v1::Coordinator::Stub::GetStatus, v1::StatusRequest()).json(), "{}");
}

TEST_F(GrpcServiceTest, ChangesOfTheRunTakeEffectAndOnesThatChangeNothingAreRefused) {
  run_.Start();
  Change(v1::ChangeRunRequest::PAUSE);
  EXPECT_TRUE(run_.coordinator->Status().paused);
  Change(v1::ChangeRunRequest::PAUSE, grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(status_.error_message(), "the run is paused already");
  Change(v1::ChangeRunRequest::RESUME);
  EXPECT_FALSE(run_.coordinator->Status().paused);
  Change(v1::ChangeRunRequest::UNKNOWN, grpc::StatusCode::INVALID_ARGUMENT);
  Change(static_cast<v1::ChangeRunRequest::Change>(9), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status_.error_message(), "expected pause, resume or stop, got 9");
  Change(v1::ChangeRunRequest::STOP);
  EXPECT_TRUE(run_.coordinator->Status().stopped);
}

TEST_F(GrpcServiceTest, DrainReachesASiteOfTheRunAndNamesOneThatIsNone) {
  run_.Start();
  Drain("c", grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(status_.error_message(), "site c is not training: it is not in the run");
  Drain("a");
  EXPECT_EQ(run_.Read("a").drain().reason(), "an operator asked for it");
  Drain("a", grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(status_.error_message(), "site a is not training: it is draining");
}

TEST_F(GrpcServiceTest, HistoryComesInPagesOldestFirst) {
  run_.Start();
  const auto all = History(0, 0);
  ASSERT_GT(all.size(), 5u);
  EXPECT_EQ(all[0].kind(), "start");
  EXPECT_EQ(all[0].text(), "epoch 1");
  EXPECT_EQ(all[0].fragment(), -1);
  const auto page = History(all[1].id(), 3);
  ASSERT_THAT(page, SizeIs(3));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(page[i].SerializeAsString(), all[2 + i].SerializeAsString());
    EXPECT_GT(page[i].id(), all[1 + i].id());
  }
  EXPECT_THAT(History(all.back().id(), 0), SizeIs(0));
}

TEST_F(GrpcServiceTest, CallOfAnotherRunIsRefusedWhateverItAsks) {
  run_.Start();
  const auto other = [](auto request) {
    request.mutable_context()->set_run_id("other");
    return request;
  };
  constexpr auto kRefused = grpc::StatusCode::FAILED_PRECONDITION;
  v1::ChangeRunRequest pause = Asked<v1::ChangeRunRequest>();
  pause.set_change(v1::ChangeRunRequest::PAUSE);
  v1::DrainRequest drain = Asked<v1::DrainRequest>();
  drain.set_site("a");
  Call(&v1::Coordinator::Stub::Describe, other(Asked<v1::DescribeRequest>()), kRefused);
  Call(&v1::Coordinator::Stub::GetHistory, other(Asked<v1::HistoryRequest>()), kRefused);
  Call(&v1::Coordinator::Stub::ChangeRun, other(pause), kRefused);
  Call(&v1::Coordinator::Stub::DrainSite, other(drain), kRefused);
  EXPECT_THAT(status_.error_message(), HasSubstr("expected run test, got other"));
  EXPECT_FALSE(run_.coordinator->Status().paused);
  EXPECT_EQ(run_.coordinator->Status().sites[0].state, core::SiteState::kTraining);
}

}  // namespace
}  // namespace causeway::server
