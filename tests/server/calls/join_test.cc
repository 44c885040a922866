// Joining cannot hang: whatever is lost between the first join and the initial parameters, each joiner gets its anchor
// or a request to ask again.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "formats/model_directory.h"
#include "server/calls/gate.h"
#include "server/calls/grpc_service.h"
#include "tests/formats/temporary_folder.h"
#include "tests/server/calls/coordinator_for_test.h"
#include "tests/server/calls/waiting_download.h"

namespace causeway::server {
namespace {

using formats::CompressModelFile;
using formats::ModelFile;
using ::testing::ElementsAre;
using testing::ElementsAre;
using ::testing::HasSubstr;
using testing::HasSubstr;

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
  const std::vector<Event> history = *run.coordinator->journal().History(0, 100);
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

const ModelFile kConfig = CompressModelFile("config.json", "{\"model_type\": \"qwen2\"}").value();
const ModelFile kTokenizer = CompressModelFile("tokenizer.json", "{}").value();

v1::KeepFileRequest Listing(std::initializer_list<ModelFile> files, const std::string& site = "eu") {
  v1::KeepFileRequest request;
  request.mutable_context()->set_site(site);
  for (const ModelFile& file : files) {
    v1::ModelFile& message = *request.add_files();
    message.set_name(file.name);
    message.set_bytes(file.bytes);
    message.set_digest(file.digest);
  }
  return request;
}

v1::KeepFileRequest With(v1::KeepFileRequest request, const ModelFile& file) {
  request.set_name(file.name);
  request.set_contents(file.compressed);
  return request;
}

class ModelFilesTest : public testing::Test {
 protected:
  TemporaryFolder folder_;
  ModelFiles files_{folder_.path()};
};

TEST_F(ModelFilesTest, TheFirstSitesListIsTheRunsAndAnyWithTheFileSuppliesIt) {
  EXPECT_THAT(files_.Keep(Listing({kConfig, kTokenizer}))->missing(), ElementsAre("config.json", "tokenizer.json"));
  const ModelFile other = CompressModelFile("config.json", "{}").value();
  const v1::KeptFiles told = files_.Keep(Listing({other, kTokenizer}, "us")).value();
  EXPECT_EQ(told.site(), "eu");
  EXPECT_EQ(told.files(0).digest(), kConfig.digest);
  EXPECT_THAT(files_.Keep(With(Listing({other, kTokenizer}, "us"), kTokenizer))->missing(), ElementsAre("config.json"));
  EXPECT_THAT(files_.Keep(With(Listing({kConfig, kTokenizer}), kConfig))->missing(), ElementsAre());
  EXPECT_EQ(files_.Read("config.json").value(), kConfig.compressed);
}

TEST_F(ModelFilesTest, ASiteWithoutFilesLeavesTheListToTheNext) {
  EXPECT_THAT(files_.Keep(Listing({}))->files(), ElementsAre());
  EXPECT_EQ(files_.Keep(Listing({kConfig}, "us"))->site(), "us");
}

TEST_F(ModelFilesTest, TheNextLifeHasThemAndMissesWhatIsGone) {
  ASSERT_TRUE(files_.Keep(Listing({kConfig, kTokenizer})).ok());
  ASSERT_TRUE(files_.Keep(With(Listing({kConfig, kTokenizer}), kConfig)).ok());
  ASSERT_TRUE(files_.Keep(With(Listing({kConfig, kTokenizer}), kTokenizer)).ok());
  std::filesystem::remove(folder_ / "files/tokenizer.json.zst");
  const ModelFiles next(folder_.path());
  EXPECT_EQ(next.List().files_size(), 2);
  EXPECT_THAT(next.List().missing(), ElementsAre("tokenizer.json"));
  folder_.Write("files.json", "{\"files\": [");
  EXPECT_THAT(ModelFiles(folder_.path()).List().files(), ElementsAre());
}

TEST_F(ModelFilesTest, WhatIsNoFileOfAModelIsRefusedAndNothingIsWritten) {
  const auto error = [&](const v1::KeepFileRequest& request) {
    return std::string(files_.Keep(request).status().message());
  };
  v1::KeepFileRequest outside = Listing({kConfig});
  outside.mutable_files(0)->set_name("../run.yaml");
  EXPECT_THAT(error(outside), HasSubstr("'../run.yaml'"));
  EXPECT_THAT(error(Listing({kConfig, kConfig})), HasSubstr("got 2"));
  v1::KeepFileRequest large = Listing({kConfig, kTokenizer});
  large.mutable_files(0)->set_bytes(formats::kMaxModelFilesBytes);
  EXPECT_THAT(error(large), HasSubstr("bytes in all"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "files.json"));
  ASSERT_TRUE(files_.Keep(Listing({kConfig})).ok());
  EXPECT_THAT(error(With(Listing({kConfig}), kTokenizer)), HasSubstr("expected a file of the run's model"));
  v1::KeepFileRequest other = With(Listing({kConfig}), kConfig);
  other.set_contents(kTokenizer.compressed);
  EXPECT_THAT(error(other), HasSubstr("other contents"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "files/config.json.zst"));
}

// A run whose model the sites bring: what the first one says is the model, for all others and after a restart.

core::RunConfig ExternalConfig() {
  core::RunConfig config = ConfigForTest();
  config.model_kind = core::ModelKind::kExternal;
  config.sync.fragments = {{"adapter."}, {""}};
  return config;
}

// A frozen base with two adapters, an embedding, and a head that is tied to it.
core::Manifest AdaptedModel() {
  return {{.name = "embed", .shape = {300, 10}, .kind = core::TensorKind::kEmbedding, .dtype = core::DType::kBfloat16},
          {.name = "base.0", .shape = {100, 100}, .layer = 0, .frozen = true, .values_digest = 0x1234},
          {.name = "adapter.0.a", .shape = {100, 4}, .layer = 0},
          {.name = "adapter.0.b", .shape = {4, 100}, .layer = 0},
          {.name = "head", .shape = {300, 10}, .kind = core::TensorKind::kHead, .alias_of = "embed"}};
}

class ExternalModelTest : public ::testing::Test {
 protected:
  core::Manifest Described() {
    const v1::RunDescription description = run.coordinator->Describe();
    return description.has_manifest() ? *transport::FromProto(description.manifest()) : core::Manifest();
  }

  std::string Refusal(const std::string& site, const core::Manifest& manifest) {
    return run.Join(site, manifest).refused().reason();
  }

  CoordinatorForTest run{Gate::Open(), {}, ExternalConfig(), AdaptedModel()};
};

TEST_F(ExternalModelTest, ModelOfTheFirstSiteIsTheRunsAndItsUnsyncedTensorsHaveNoPlace) {
  EXPECT_TRUE(Described().empty());
  const v1::CoordinatorMessage answer = run.Join("a", AdaptedModel());
  ASSERT_TRUE(answer.has_welcome());
  EXPECT_EQ(*transport::FromProto(answer.welcome().manifest()), AdaptedModel());
  ASSERT_EQ(answer.welcome().fragments_size(), 2);
  EXPECT_THAT(answer.welcome().fragments(0).tensors(), ElementsAre(2, 3));
  EXPECT_THAT(answer.welcome().fragments(1).tensors(), ElementsAre(0));
  EXPECT_EQ(Described(), AdaptedModel());
  EXPECT_TRUE(run.Join("b", AdaptedModel()).has_welcome());
  run.Seed("a");
  EXPECT_EQ(run.coordinator->Describe().versions_size(), 2);
}

TEST_F(ExternalModelTest, AnotherModelIsRefusedWithTheFirstDifference) {
  ASSERT_TRUE(run.Join("a", AdaptedModel()).has_welcome());
  core::Manifest base = AdaptedModel(), shape = AdaptedModel(), trained = AdaptedModel(), untied = AdaptedModel();
  base[1].values_digest = 0x1235;
  EXPECT_THAT(Refusal("b", base), HasSubstr("at tensor 1: expected base.0 [100,100] matrix of layer 0, frozen with "
                                            "values of digest 0000000000001234, got 0000000000001235"));
  shape[3].shape = {5, 100};
  EXPECT_THAT(Refusal("b", shape), HasSubstr("at tensor 3: expected adapter.0.b [4,100] matrix of layer 0, got "
                                             "adapter.0.b [5,100] matrix of layer 0"));
  trained[1].frozen = false;
  trained[1].values_digest = 0;
  EXPECT_THAT(Refusal("b", trained), HasSubstr("at tensor 1: expected base.0 [100,100] matrix of layer 0, frozen, got "
                                               "base.0 [100,100] matrix of layer 0"));
  untied[4].alias_of.clear();
  EXPECT_THAT(Refusal("b", untied), HasSubstr("at tensor 4: expected head [300,10] head, tied to embed, got"));
}

TEST_F(ExternalModelTest, SitesMayDifferInTypesAndLeaveDigestsOut) {
  ASSERT_TRUE(run.Join("a", AdaptedModel()).has_welcome());
  core::Manifest other = AdaptedModel();
  other[0].dtype = core::DType::kFloat32;
  other[1].values_digest = 0;
  ASSERT_TRUE(run.Join("b", other).has_welcome());
  EXPECT_EQ(Described(), AdaptedModel());
}

TEST_F(ExternalModelTest, ModelThatTheFragmentsDoNotFitIsRefused) {
  core::Manifest manifest = AdaptedModel();
  for (core::TensorSpec& tensor : manifest) tensor.frozen = tensor.layer == 0;
  for (core::TensorSpec& tensor : manifest) tensor.values_digest = 0;
  EXPECT_THAT(Refusal("a", manifest), HasSubstr("got none in fragment 0 by the prefixes [adapter.]"));
  EXPECT_TRUE(Described().empty());
}

TEST_F(ExternalModelTest, ModelIsReplacedBeforeTheSeedWhenNoSiteIsLeftOfIt) {
  core::Manifest first = AdaptedModel();
  first[2].shape = {100, 8};
  ASSERT_TRUE(run.Join("a", first).has_welcome());
  EXPECT_THAT(Refusal("b", AdaptedModel()), HasSubstr("at tensor 2"));
  run.TickAt(kAfterTheLease);
  ASSERT_TRUE(run.Join("b", AdaptedModel()).has_welcome());
  EXPECT_EQ(Described(), AdaptedModel());
}

TEST_F(ExternalModelTest, ModelSurvivesARestartBeforeAndAfterTheSeed) {
  ASSERT_TRUE(run.Join("a", AdaptedModel()).has_welcome());
  run.Restart();
  EXPECT_EQ(Described(), AdaptedModel());
  ASSERT_TRUE(run.Join("a", AdaptedModel()).has_welcome());
  run.Seed("a");
  run.Restart();
  EXPECT_EQ(Described(), AdaptedModel());
  core::Manifest base = AdaptedModel();
  base[1].values_digest = 0x1235;
  EXPECT_THAT(Refusal("b", base), HasSubstr("the base model differs from the run's at tensor 1"));
  EXPECT_TRUE(run.Join("b", AdaptedModel()).has_welcome());
}

}  // namespace
}  // namespace causeway::server
