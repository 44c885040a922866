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

TEST(ModelDirectory, FolderWithoutAModelIsRefused) {
  const TemporaryFolder folder;
  EXPECT_THAT(std::string(Model(folder.path()).status.message()),
              EndsWith("expected model.safetensors or model.safetensors.index.json"));
  const auto error = [&](const char* index) {
    folder.Write("model.safetensors.index.json", index);
    return std::string(Model(folder.path()).status.message());
  };
  EXPECT_THAT(error("{"), EndsWith("index.json: expected a JSON object with weight_map"));
  EXPECT_THAT(error(R"({"weight_map":[]})"), EndsWith("index.json: expected a JSON object with weight_map"));
  EXPECT_THAT(error(R"({"weight_map":{"a":"../x"}})"),
              EndsWith(R"(index.json: weight_map: a: expected a file name, got "../x")"));
  EXPECT_THAT(error(R"({"weight_map":{"a":"gone.safetensors"}})"), HasSubstr("gone.safetensors: No such file"));
}

}  // namespace
}  // namespace causeway::formats
