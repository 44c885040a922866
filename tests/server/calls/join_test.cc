// Joining cannot hang: whatever is lost between the first join and the initial parameters, each joiner gets its anchor
// or a request to ask again.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "tests/server/calls/coordinator_for_test.h"
#include "tests/server/calls/waiting_download.h"

namespace causeway::server {
namespace {

using ::testing::HasSubstr;

core::Manifest AnotherManifest() {
  core::Manifest manifest = ManifestForTest();
  manifest[1].shape = {301};
  return manifest;
}

TEST(JoinBeforeTheSeed, ModelStaysWhenTheLeaseOfTheLastSiteEndsBeforeTheSeed) {
  CoordinatorForTest run;
  ASSERT_TRUE(run.Join("a").has_welcome());
  WaitingDownload anchor(run, "a", 0);
  run.TickAt(kAfterTheLease);
  ASSERT_TRUE(run.Join("a").has_welcome());
  EXPECT_TRUE(run.AwaitSeedRequest("a"));
  run.Seed("a");
  EXPECT_TRUE(anchor.Finish().ok());
}

TEST(JoinBeforeTheSeed, ModelAndItsSeederSurviveARestartBeforeTheSeed) {
  CoordinatorForTest run;
  ASSERT_TRUE(run.Join("b").has_welcome());
  EXPECT_TRUE(run.AwaitSeedRequest("b"));
  ASSERT_TRUE(run.Join("a").has_welcome());
  EXPECT_TRUE(run.UploadSeed("b", 0).admitted());
  run.Restart();
  EXPECT_TRUE(run.coordinator->Describe().has_manifest());
  ASSERT_TRUE(run.Join("a").has_welcome());
  WaitingDownload anchor(run, "a", 0);
  ASSERT_TRUE(run.Join("b").has_welcome());
  EXPECT_TRUE(run.AwaitSeedRequest("b"));
  run.Seed("b");  // again what the life before had received
  EXPECT_TRUE(anchor.Finish().ok());
}

TEST(JoinBeforeTheSeed, AnotherModelTakesThePlaceOfOneThatNoSiteIsLeftOf) {
  CoordinatorForTest run;
  ASSERT_TRUE(run.Join("a").has_welcome());
  EXPECT_THAT(run.Join("b", AnotherManifest()).refused().reason(), HasSubstr("301"));
  WaitingDownload anchor(run, "a", 0);
  run.TickAt(kAfterTheLease);
  ASSERT_TRUE(run.Join("b", AnotherManifest()).has_welcome());
  const grpc::Status ended = anchor.Finish();
  EXPECT_EQ(ended.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_THAT(ended.error_message(), HasSubstr("the model is generation 2 now; retry"));
  EXPECT_THAT(run.Join("a").refused().reason(), HasSubstr("301"));
}

TEST(JoinBeforeTheSeed, EachMessageNamesTheGenerationAndAStaleOneIsAborted) {
  CoordinatorForTest run;
  run.Join("a");
  run.Leave("a");
  const v1::CoordinatorMessage welcome = run.Join("b", AnotherManifest());
  EXPECT_EQ(welcome.welcome().generation(), 2u);
  EXPECT_EQ(WaitingDownload(run, "b", 0, /*generation=*/1).Finish().error_code(), grpc::StatusCode::ABORTED);
  EXPECT_EQ(WaitingDownload(run, "b", 0, /*generation=*/3).Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  v1::UploadHeader header = HeaderOf("b", 0);
  header.set_initial(true);
  header.set_generation(1);
  EXPECT_EQ(run.Upload(header, {}).status.error_code(), grpc::StatusCode::ABORTED);
  header.set_generation(2);
  EXPECT_FALSE(run.Upload(header, {}, /*limit=*/0).missing.empty());
  const std::vector<Event> history = *run.coordinator->History(0, 100);
  const auto withdrawn = std::ranges::find(history, "withdrawn", &Event::kind);
  ASSERT_NE(withdrawn, history.end());
  EXPECT_THAT(withdrawn->text, HasSubstr("generation 1"));
}

TEST(JoinBeforeTheSeed, RepeatedRequestsOfAnAnchorWaitSideBySide) {
  CoordinatorForTest run;
  run.Join("a");
  WaitingDownload first(run, "a", 0), second(run, "a", 0, /*generation=*/1);
  run.Seed("a");
  EXPECT_TRUE(first.Finish().ok());
  EXPECT_TRUE(second.Finish().ok());
  EXPECT_FALSE(first.header().has_generation()) << "a site of before";
  EXPECT_EQ(second.header().generation(), 1u);
}

TEST(JoinBeforeTheSeed, SiteThatWaitsForLongSaysWhatFor) {
  CoordinatorForTest run;
  run.Join("a");
  run.Join("b");
  const auto reason = [&](int site) { return run.coordinator->Status().sites[site].reason; };
  run.UploadSeed("a", 1);
  run.HearAt(9'000, {"a", "b"});
  EXPECT_EQ(reason(0), "downloads the anchors");
  for (int64_t ms = 18'000; ms <= 36'000; ms += 9'000) run.HearAt(ms, {"a", "b"});
  EXPECT_EQ(reason(0), "joining for 36 s, waits for its initial parameters, of which 1 of 2 fragments are here");
  EXPECT_EQ(reason(1), "joining for 36 s, waits for the initial parameters, which site a was asked for");
  run.Seed("a");
  EXPECT_EQ(reason(1), "joining for 36 s, waits for its anchors");
}

TEST(JoinBeforeTheSeed, DownloadBeforeThereIsAModelIsWorthARetry) {
  CoordinatorForTest run;
  EXPECT_EQ(WaitingDownload(run, "a", 0).Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace causeway::server
