#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include "tests/server/calls/coordinator_for_test.h"
#include "tests/server/run/direct_coordinator.h"

namespace causeway::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

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

}  // namespace
}  // namespace causeway::server
