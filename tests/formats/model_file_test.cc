#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <random>

#include "formats/model_directory.h"

namespace causeway::formats {
namespace {

using testing::HasSubstr;

std::string ErrorOf(const std::string& name, const std::string& contents = "{}") {
  const absl::StatusOr<ModelFile> file = CompressModelFile(name, contents);
  return file.ok() ? "taken" : std::string(file.status().message());
}

TEST(ModelFile, ContentsComeBackAsTheyWere) {
  for (const std::string& contents : {std::string("{}"), std::string(), std::string(3 << 20, 'x')}) {
    const absl::StatusOr<ModelFile> file = CompressModelFile("tokenizer.json", contents);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(file->bytes, std::ssize(contents));
    EXPECT_EQ(ExpandModelFile(*file).value(), contents);
  }
}

TEST(ModelFile, NamesLeadNowhereElseAndAreNoCodeAndNoWeights) {
  EXPECT_EQ(ErrorOf("config.json"), "taken");
  EXPECT_EQ(ErrorOf("sentencepiece.bpe.model"), "taken");
  for (const char* name : {"", "../config.json", "a/b.json", ".json", "model.safetensors", "modeling.py", "a b.json",
                           "pytorch_model.bin", "model.safetensors.index.json", "SHA256SUMS", "config.json\n"}) {
    EXPECT_THAT(ErrorOf(name), HasSubstr("expected")) << name;
  }
  EXPECT_THAT(ErrorOf(std::string(200, 'a') + ".json"), HasSubstr("up to 128 bytes"));
}

TEST(ModelFile, WhatFitsNoMessageIsRefused) {
  std::mt19937 random(1);
  std::string noise(9 << 20, '\0');
  for (char& byte : noise) byte = static_cast<char>(random());
  EXPECT_THAT(ErrorOf("tokenizer.model", noise), HasSubstr("compressed, got 94"));
  EXPECT_THAT(ErrorOf("tokenizer.model", std::string(kMaxModelFilesBytes + 1, ' ')), HasSubstr("got 67108865"));
}

TEST(ModelFile, OtherContentsThanAnnouncedAreRefused) {
  const ModelFile file = CompressModelFile("config.json", "{\"a\": 1}").value();
  ModelFile longer = file, other = file, cut = file, huge = file;
  ++longer.bytes;
  ++other.digest;
  cut.compressed.pop_back();
  huge.bytes = int64_t{1} << 40;
  for (const ModelFile& wrong : {longer, other, cut, huge}) {
    EXPECT_THAT(std::string(ExpandModelFile(wrong).status().message()), HasSubstr("file 'config.json' of the model"));
  }
}

}  // namespace
}  // namespace causeway::formats
