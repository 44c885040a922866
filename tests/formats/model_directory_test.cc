#include "formats/model_directory.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <vector>

#include "formats/safetensors.h"
#include "tests/formats/temporary_folder.h"

namespace causeway::formats {
namespace {

using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;

const core::Manifest kManifest = {{.name = "a", .shape = {2}}, {.name = "b", .shape = {1, 3}}};
const float kA[2] = {1, 2};
const float kB[3] = {3, 4, 5};

// Reads the folder into zeros.
struct Model {
  explicit Model(const std::string& dir) {
    const std::span<float> tensors[2] = {a, b};
    status = ReadModelDirectory(dir, kManifest, tensors);
  }
  std::vector<float> a = {0, 0};
  std::vector<float> b = {0, 0, 0};
  absl::Status status;
};

void Write(const std::string& path, const std::vector<TensorData>& tensors) {
  ASSERT_TRUE(WriteSafetensors(path, tensors, {}).ok());
}

TEST(ModelDirectory, OneFileInAnyOrder) {
  const TemporaryFolder folder;
  Write(folder / "model.safetensors", {{"b", {1, 3}, kB}, {"layers.0.rotary_emb.inv_freq", {2}, kA}, {"a", {2}, kA}});
  const Model model(folder.path());
  ASSERT_TRUE(model.status.ok()) << model.status;
  EXPECT_THAT(model.a, ElementsAre(1, 2));
  EXPECT_THAT(model.b, ElementsAre(3, 4, 5));
}

TEST(ModelDirectory, ShardsOfAnIndex) {
  const TemporaryFolder folder;
  Write(folder / "model-1.safetensors", {{"a", {2}, kA}});
  Write(folder / "model-2.safetensors", {{"b", {1, 3}, kB}});
  folder.Write("model.safetensors.index.json",
               R"({"metadata":{},"weight_map":{"a":"model-1.safetensors","b":"model-2.safetensors"}})");
  const Model model(folder.path());
  ASSERT_TRUE(model.status.ok()) << model.status;
  EXPECT_THAT(model.a, ElementsAre(1, 2));
  EXPECT_THAT(model.b, ElementsAre(3, 4, 5));
}

TEST(ModelDirectory, FolderHasAModelIfItHasWeightsOrAnIndex) {
  const TemporaryFolder folder;
  EXPECT_FALSE(HasModel(folder / "none"));
  folder.Write("config.json", "{}");
  EXPECT_FALSE(HasModel(folder.path()));
  folder.Write("model.safetensors.index.json", "{}");
  EXPECT_TRUE(HasModel(folder.path()));
}

TEST(ModelDirectory, AnotherModelIsRefusedByTensor) {
  const auto error = [](const std::vector<TensorData>& tensors) {
    const TemporaryFolder folder;
    Write(folder / "model.safetensors", tensors);
    return std::string(Model(folder.path()).status.message());
  };
  EXPECT_THAT(error({{"a", {2}, kA}}), EndsWith(": tensor b is missing"));
  EXPECT_THAT(error({{"a", {2}, kA}, {"b", {3}, kB}}),
              EndsWith("model.safetensors: tensor b: expected shape [1,3], got [3]"));
  EXPECT_THAT(error({{"a", {2}, kA}, {"b", {1, 3}, kB}, {"lm_head.weight", {2}, kA}}),
              EndsWith("tensor lm_head.weight: expected a tensor of the run's model, once"));
}

// A tied model, whose files have its head or its embedding under both names or one.
TEST(ModelDirectory, HeadOfATiedModelIsTakenWhereItEqualsTheEmbedding) {
  const core::Manifest manifest = {{.name = "model.embed_tokens.weight", .shape = {3, 1}}};
  const float other[3] = {3, 4, 6};
  std::vector<float> values;
  const auto read = [&](const std::vector<TensorData>& first, const std::vector<TensorData>& second) {
    const TemporaryFolder folder;
    Write(folder / "1.safetensors", first);
    Write(folder / "2.safetensors", second);
    folder.Write("model.safetensors.index.json", R"({"weight_map":{"x":"1.safetensors","y":"2.safetensors"}})");
    values.assign(3, 0);
    const std::span<float> tensors[1] = {values};
    return ReadModelDirectory(folder.path(), manifest, tensors);
  };
  const TensorData embedding{"model.embed_tokens.weight", {3, 1}, kB};
  EXPECT_TRUE(read({embedding, {"lm_head.weight", {3, 1}, kB}}, {}).ok());
  EXPECT_TRUE(read({{"lm_head.weight", {3, 1}, kB}}, {embedding}).ok()) << "the head comes first";
  EXPECT_TRUE(read({{"lm_head.weight", {3, 1}, kB}}, {}).ok()) << "under the head's name alone";
  EXPECT_THAT(values, ElementsAre(3, 4, 5));
  EXPECT_THAT(
      std::string(read({embedding}, {{"lm_head.weight", {3, 1}, other}}).message()),
      EndsWith("2.safetensors: tensor lm_head.weight: expected the values of model.embed_tokens.weight, since the "
               "run ties them (tie_word_embeddings), got others: value 2 is 6 instead of 5; the model is untied: "
               "tie_word_embeddings: false in its config.json"));
  EXPECT_THAT(std::string(read({embedding}, {{"lm_head.weight", {1, 3}, kB}}).message()),
              EndsWith("tensor lm_head.weight: expected shape [3,1], got [1,3]"));
}

TEST(ModelDirectory, TensorsThatOtherRanksHoldArePassedOver) {
  const TemporaryFolder folder;
  Write(folder / "model.safetensors", {{"a", {2}, kA}, {"b", {1, 3}, kB}});
  std::vector<float> b(3);
  const std::span<float> tensors[1] = {b};
  const core::Manifest part = {kManifest[1]};
  EXPECT_TRUE(ReadModelDirectory(folder.path(), part, tensors, kManifest).ok());
  EXPECT_THAT(b, ElementsAre(3, 4, 5));
  EXPECT_FALSE(ReadModelDirectory(folder.path(), part, tensors).ok()) << "a tensor of no rank";
}

TEST(ModelDirectory, FileOfAnotherKindIsNamed) {
  const TemporaryFolder folder;
  const auto error = [&](std::string_view contents) {
    folder.Write("model.safetensors", contents);
    return std::string(Model(folder.path()).status.message());
  };
  EXPECT_THAT(error("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 99\n"),
              EndsWith("model.safetensors: expected a safetensors file, got a pointer of Git LFS, which stands for the "
                       "file: git lfs pull brings the file itself"));
  EXPECT_THAT(error("<!DOCTYPE html><html></html>"), HasSubstr("got a web page (HTML): it came instead of the file"));
  EXPECT_THAT(error(std::string("PK\3\4\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\5\0\0\0a.txt", 35)),
              HasSubstr("zip"));
}

TEST(ModelDirectory, FolderWithoutAModelIsRefused) {
  const TemporaryFolder folder;
  EXPECT_THAT(std::string(Model(folder.path()).status.message()),
              EndsWith("expected model.safetensors or model.safetensors.index.json"));
  const auto error = [&](const char* index) {
    folder.Write("model.safetensors.index.json", index);
    return std::string(Model(folder.path()).status.message());
  };
  EXPECT_THAT(error("{"), EndsWith("index.json: expected JSON, line 1, column 2: got the end of the text"));
  EXPECT_THAT(error(R"({"weight_map":[]})"), EndsWith("index.json: expected a JSON object with weight_map"));
  EXPECT_THAT(error(R"({"weight_map":{"a":"../x"}})"),
              EndsWith(R"(index.json: weight_map: a: expected a file name, got "../x")"));
  EXPECT_THAT(error(R"({"weight_map":{"a":"gone.safetensors"}})"), HasSubstr("gone.safetensors: No such file"));
}

}  // namespace
}  // namespace causeway::formats
