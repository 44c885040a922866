// Ranks on devices, whose gradients NCCL sums where they lie: over the fake device and the fake NCCL.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>

#include "absl/strings/str_cat.h"
#include "formats/safetensors.h"
#include "tests/folders.h"
#include "tests/formats/temporary_folder.h"
#include "tests/worker/device/fake_backend.h"
#include "tests/worker/model/test_values.h"
#include "tests/worker/ranks/fake_stream.h"
#include "tests/worker/ranks/gloo_ranks.h"
#include "worker/parallel/llama_trainer.h"
#include "worker/ranks/nccl_collectives.h"

namespace causeway::worker {
namespace {

using ::testing::HasSubstr;

const NcclApi& Fake() {
  const auto loaded = LoadNccl(InBuild("tests/worker/ranks/fake/libnccl.so.2"));
  CHECK(loaded.ok());
  return **loaded;
}

constexpr int64_t kBucketBytes = 1024;  // several in a model of some thousand values

// Trains on `world` ranks. Each one's first moments, or why it ended: after one step they are a share of the gradients.
std::vector<absl::StatusOr<std::vector<float>>> TrainOver(int world, core::Step steps, double timeout_s = 60) {
  std::vector<absl::StatusOr<std::vector<float>>> result(world);
  const std::vector<RankUnderTest> ranks = OverThreads(world);
  const std::string text = WriteTemporary("nccl_text.txt", SmallText(20000));
  const auto train = [&](int rank) -> absl::StatusOr<std::vector<float>> {
    Collectives& control = *ranks[rank].collectives;
    ASSIGN_OR_RETURN(std::unique_ptr<Collectives> nccl,
                     MakeNcclCollectives(Fake(), control, std::make_shared<FakeStreamHooks>(), TimeoutOf(60)));
    ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer,
                     LlamaTrainer::Make(
                         TinyRun(), "eu", {.data_path = text, .ranks = {.values = &control, .timeout_s = timeout_s}},
                         std::make_unique<DeviceRank>(std::make_unique<FakeBackend>(),
                                                      DeviceSettings{.bucket_bytes = kBucketBytes}, std::move(nccl))));
    for (core::Step t = 1; t <= steps; ++t) RETURN_IF_ERROR(trainer->Step(t).status());
    const std::string path = FolderOfProcess() / absl::StrCat(world, "_", rank, ".safetensors");
    RETURN_IF_ERROR(trainer->Save(path).status());
    ASSIGN_OR_RETURN(const formats::SafetensorsFile file, formats::SafetensorsFile::Open(path));
    std::vector<float> all;
    for (const core::TensorSpec& spec : trainer->manifest()) {
      std::vector<float> values(spec.NumValues());
      RETURN_IF_ERROR(file.Read("first_moment." + spec.name, values));
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  };
  OnRanks(world, [&](int rank) -> absl::Status {
    result[rank] = train(rank);
    return absl::OkStatus();
  });
  return result;
}

TEST(NcclTrainerTest, GradientsOfTwoRanksAreThoseOfOne) {
  const auto one = TrainOver(1, 1), two = TrainOver(2, 1);
  ASSERT_TRUE(one[0].ok() && two[0].ok() && two[1].ok()) << one[0].status() << two[0].status() << two[1].status();
  EXPECT_TRUE(*two[0] == *two[1]);
  double difference = 0, norm = 0;
  for (size_t i = 0; i < one[0]->size(); ++i) {
    difference += std::pow(static_cast<double>((*one[0])[i]) - (*two[0])[i], 2);
    norm += std::pow(static_cast<double>((*one[0])[i]), 2);
  }
  EXPECT_GT(norm, 0);
  EXPECT_LE(std::sqrt(difference / norm), 1e-6);
}

TEST(NcclTrainerTest, ACollectiveThatFailsEndsTheSiteWithASentence) {
  setenv("FAKE_NCCL_ERROR_AFTER", "3", 1);
  setenv("FAKE_NCCL_RANK", "1", 1);
  const auto ended = TrainOver(2, 5, /*timeout_s=*/5);
  unsetenv("FAKE_NCCL_ERROR_AFTER");
  unsetenv("FAKE_NCCL_RANK");
  for (const auto& rank : ended) {
    EXPECT_EQ(rank.status().code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(rank.status().message()), HasSubstr("remote process exited or there was a network error"));
  }
}

}  // namespace
}  // namespace causeway::worker
