#include "server/calls/model_files.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "formats/model_directory.h"
#include "tests/formats/temporary_folder.h"

namespace causeway::server {
namespace {

using formats::CompressModelFile;
using formats::ModelFile;
using testing::ElementsAre;
using testing::HasSubstr;

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

}  // namespace
}  // namespace causeway::server
