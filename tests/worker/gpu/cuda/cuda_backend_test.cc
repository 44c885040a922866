// The part of the CUDA backend that needs a GPU; the rest of the model is tested on the fake device.
#include "worker/gpu/cuda/cuda_backend.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "core/model_manifest.h"
#include "tests/worker/train/test_values.h"
#include "worker/gpu/cuda/cublas_lt.h"
#include "worker/gpu/device_trainer.h"
#include "worker/gpu/fake_backend.h"

namespace causeway::worker {
namespace {

using ::testing::HasSubstr;

TEST(CudaBackendTest, ALibraryThatIsMissingIsNamed) {
  const auto library = LoadCublasLt("/nowhere");
  EXPECT_EQ(library.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(library.status().message()), HasSubstr("expected libcublasLt.so."));
  EXPECT_THAT(std::string(library.status().message()), HasSubstr("/nowhere/"));
}

TEST(CudaBackendTest, ADeviceThatIsMissingIsNamed) {
  const auto backend = MakeCudaBackend(1000, "");
  EXPECT_THAT(std::string(backend.status().message()), HasSubstr("CUDA device"));
}

TEST(CudaBackendTest, ItsLossIsTheCpusOverAHundredSteps) {
  auto backend = MakeCudaBackend(0, "");
  if (!backend.ok()) GTEST_SKIP() << backend.status();
  const core::RunConfig config = TinyRun();
  const std::string text = WriteTemporary("cuda_text.txt", SmallText(20'000));
  auto cpu = MakeTrainer(config, "eu", {.data_path = text});
  auto gpu = DeviceTrainer::Make(config, "eu", {.data_path = text}, {}, *std::move(backend));
  ASSERT_TRUE(cpu.ok() && gpu.ok()) << cpu.status() << gpu.status();
  for (core::Step t = 1; t <= 100; ++t) {
    const auto expected = (*cpu)->Step(t), got = (*gpu)->Step(t);
    ASSERT_TRUE(expected.ok() && got.ok()) << expected.status() << got.status();
    ASSERT_NEAR(got->loss, expected->loss, 1e-4 * expected->loss) << "step " << t;
  }
}

TEST(CudaBackendTest, InBfloat16ItsLossIsThatOfTheFakeDevice) {
  auto backend = MakeCudaBackend(0, "");
  if (!backend.ok()) GTEST_SKIP() << backend.status();
  const core::RunConfig config = TinyRun();
  const std::string text = WriteTemporary("cuda_text.txt", SmallText(20'000));
  const DeviceSettings settings{.type = ValueType::kBfloat16};
  auto fake = DeviceTrainer::Make(config, "eu", {.data_path = text}, settings, std::make_unique<FakeBackend>());
  auto gpu = DeviceTrainer::Make(config, "eu", {.data_path = text}, settings, *std::move(backend));
  ASSERT_TRUE(fake.ok() && gpu.ok()) << fake.status() << gpu.status();
  for (core::Step t = 1; t <= 20; ++t) {
    const auto expected = (*fake)->Step(t), got = (*gpu)->Step(t);
    ASSERT_TRUE(expected.ok() && got.ok()) << expected.status() << got.status();
    ASSERT_NEAR(got->loss, expected->loss, 1e-2 * expected->loss) << "step " << t;
  }
}

}  // namespace
}  // namespace causeway::worker
