// cuDNN's own checks of the attention that we describe to it. They need its library, and no device: descriptions of
// the devices stand for them.
#include "worker/device/cuda/cudnn_attention.h"

#include <dlfcn.h>
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "absl/strings/str_replace.h"
#include "formats/run_yaml.h"
#include "worker/model/llama_block.h"

namespace causeway::worker {
namespace {

using ::testing::HasSubstr;

std::string TextOf(const std::string& path) {
  std::ifstream file(std::string(SOURCE_DIRECTORY) + path);
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_TRUE(file.good()) << path;
  return text.str();
}

class CudnnAttentionTest : public ::testing::TestWithParam<const char*> {
 protected:
  // cuDNN asks for a driver before it looks at a description: the toolkit's stub is enough.
  void SetUp() override {
    if (dlopen("libcuda.so.1", RTLD_NOW) == nullptr) dlopen(CUDA_STUB, RTLD_NOW | RTLD_GLOBAL);
    const absl::Status status = Check({1, 64, 4, 4, 64});
    if (absl::IsNotFound(status) || absl::IsUnavailable(status)) GTEST_SKIP() << status;
  }

  absl::Status Check(const AttentionShape& shape) { return CheckCudnnAttention(shape, CUDA_LIBRARIES, properties_); }

 private:
  const std::string properties_ = TextOf(GetParam());
};

TEST_P(CudnnAttentionTest, ItTakesTheModelOfEachRunInDeploy) {
  for (const std::string file : {"run.yaml", "quickstart.yaml", "compose/run.yaml"}) {
    const std::string text = absl::StrReplaceAll(TextOf("/deploy/" + file), {{"$run_id", "run"},
                                                                             {"$steps", "100"},
                                                                             {"$vocab_size", "256"},
                                                                             {"$schedule", "constant"},
                                                                             {"$sites", "1"},
                                                                             {"$eval_every_rounds", "1"}});
    const auto config = formats::ParseRunYaml(text, file);
    ASSERT_TRUE(config.ok()) << config.status();
    const LlamaShape shape(config->llama, config->inner.batch_size, config->sequence_length());
    EXPECT_EQ(Check(shape.attention), absl::OkStatus()) << file;
  }
}

TEST_P(CudnnAttentionTest, ItTakesModelsOfManySizesAndGroups) {
  for (const auto& [heads, kv_heads, size] :
       {std::array<int64_t, 3>{12, 12, 64}, {32, 8, 64}, {28, 4, 128}, {32, 8, 128}}) {
    for (const int64_t sequence : {64, 1024, 8192}) {
      EXPECT_EQ(Check({2, sequence, heads, kv_heads, size}), absl::OkStatus()) << heads << " " << sequence;
    }
  }
}

TEST_P(CudnnAttentionTest, AShapeThatItDoesNotTakeIsRefusedInItsWords) {
  const absl::Status size = Check({1, 64, 4, 4, 12}), group = Check({1, 64, 3, 2, 64});
  EXPECT_EQ(size.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(size.message()),
              HasSubstr("attention of 4 heads, 4 of keys, of size 12, over 1 rows of 64: hidden_dim should be "
                        "multiple of 8"));
  EXPECT_THAT(std::string(group.message()), HasSubstr("must be a factor of number of heads for query"));
}

INSTANTIATE_TEST_SUITE_P(Devices, CudnnAttentionTest,
                         ::testing::Values("/tests/gpu/h100.json", "/tests/gpu/h200.json"));

TEST(CudnnTest, ALibraryThatIsMissingIsNamed) {
  const absl::Status status = CheckCudnnAttention({1, 64, 4, 4, 64}, "/nowhere", "{}");
  if (absl::IsUnavailable(status)) GTEST_SKIP() << status;
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("(or --cuda_libs=DIR): /nowhere/"));
}

}  // namespace
}  // namespace causeway::worker
