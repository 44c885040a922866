// The GPU's AdamW and the whole update phase on it against the CPU's, bit for bit. Skipped, with the reason, where
// there is no GPU.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "core/bfloat16.h"
#include "core/random.h"
#include "offload/cuda/cuda_device.h"
#include "offload/host_array.h"
#include "offload/interleaved_update.h"

namespace causeway::offload {
namespace {

constexpr AdamWParameters kAdamW = {.lr = 1e-2, .weight_decay = 0.1, .gradient_scale = 0.75f};

// The state that one side works on, on the host.
struct Values {
  explicit Values(int64_t count)
      : p(count * sizeof(float)),
        m(count * sizeof(float)),
        v(count * sizeof(float)),
        gradient(count * sizeof(float)),
        copy(count * sizeof(uint16_t)) {}

  HostArray p, m, v, gradient, copy;
};

// Scales apart: ordinary, near the smallest that is kept, and denormal; zeros of both signs.
float Mixed(uint64_t seed, int64_t i, float largest) {
  constexpr int kExponents[] = {0, -10, -49, -51, -99, -101, -126, -140};
  const uint64_t bits = core::HashCombine(seed, static_cast<uint64_t>(i));
  if (bits % 61 == 0) return bits % 2 == 0 ? 0.0f : -0.0f;
  const auto unit = static_cast<float>(2 * core::UnitInterval(core::SplitMix64(bits)) - 1);
  return largest * std::ldexp(unit, kExponents[bits % std::size(kExponents)]);
}

void FillGradient(GradientType type, uint64_t seed, int64_t count, const HostArray& gradient) {
  for (int64_t i = 0; i < count; ++i) {
    const float g = Mixed(seed, i, 0.1f);
    if (type == GradientType::kFloat32) {
      gradient.Values<float>()[i] = g;
    } else {
      gradient.Values<uint16_t>()[i] = core::ToBfloat16(g);
    }
  }
}

void FillState(uint64_t seed, int64_t count, const Values& values) {
  for (int64_t i = 0; i < count; ++i) {
    values.p.Values<float>()[i] = Mixed(seed, i, 1.0f);
    values.m.Values<float>()[i] = Mixed(seed + 1, i, 0.1f);
    values.v.Values<float>()[i] = std::fabs(Mixed(seed + 2, i, 0.01f));
  }
}

template <typename T>
std::string Difference(const HostArray& expected, const HostArray& got, const char* what) {
  const auto a = expected.Values<T>(), b = got.Values<T>();
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(&a[i], &b[i], sizeof(T)) == 0) continue;
    return std::string(what) + " " + std::to_string(i) + ": expected " + std::to_string(a[i]) + ", got " +
           std::to_string(b[i]);
  }
  return "";
}

std::string Differences(const Values& expected, const Values& got) {
  return Difference<float>(expected.p, got.p, "p") + Difference<float>(expected.m, got.m, "m") +
         Difference<float>(expected.v, got.v, "v") + Difference<uint16_t>(expected.copy, got.copy, "copy");
}

class CudaUpdate : public testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<std::unique_ptr<Device>> device = MakeCudaDevice(0);
    if (!device.ok()) GTEST_SKIP() << device.status();
    device_ = *std::move(device);
  }

  void* OnDevice(const HostArray& host) {
    void* memory = *device_->Allocate(host.bytes());
    device_->CopyToDevice(Queue::kUpdate, memory, host.data(), host.bytes());
    return memory;
  }
  void Fetch(Queue queue, const HostArray& host, const void* memory) {
    device_->CopyToHost(queue, host.data(), memory, host.bytes());
  }
  void AwaitAll(Queue queue) {
    const Device::Event done = device_->MakeEvent();
    device_->Record(done, queue);
    device_->AwaitOnHost(done);
    ASSERT_TRUE(device_->status().ok()) << device_->status();
  }

  std::unique_ptr<Device> device_;
};

// [first, first + count) of arrays that end a little later, so that what must stay is seen to stay.
struct StepCase {
  int64_t first, count;
  GradientType gradient;
  bool copy;
};

class CudaAdamW : public CudaUpdate, public testing::WithParamInterface<StepCase> {};

TEST_P(CudaAdamW, GivesTheCpusBits) {
  const StepCase& c = GetParam();
  const int64_t size = c.first + c.count + 5;
  Values cpu(size), gpu(size);
  FillState(1, size, cpu);
  FillState(1, size, gpu);
  AdamWArrays on_cpu = {.gradient = cpu.gradient.data(),
                        .gradient_type = c.gradient,
                        .first_moment = cpu.m.Values<float>().data(),
                        .second_moment = cpu.v.Values<float>().data(),
                        .parameters = cpu.p.Values<float>().data(),
                        .bfloat16_copy = c.copy ? cpu.copy.Values<uint16_t>().data() : nullptr,
                        .count = size};
  void* copy = OnDevice(gpu.copy);
  AdamWArrays on_gpu = {.gradient = OnDevice(gpu.gradient),
                        .gradient_type = c.gradient,
                        .first_moment = static_cast<float*>(OnDevice(gpu.m)),
                        .second_moment = static_cast<float*>(OnDevice(gpu.v)),
                        .parameters = static_cast<float*>(OnDevice(gpu.p)),
                        .bfloat16_copy = c.copy ? static_cast<uint16_t*>(copy) : nullptr,
                        .count = size};
  for (int64_t t = 1; t <= 5; ++t) {
    FillGradient(c.gradient, 100 + t, size, cpu.gradient);
    device_->CopyToDevice(Queue::kUpdate, const_cast<void*>(on_gpu.gradient), cpu.gradient.data(),
                          cpu.gradient.bytes());
    const AdamWConstants constants = MakeConstants(kAdamW, t);
    AdamWStep(constants, on_cpu.Part(c.first, c.count));
    device_->AdamW(Queue::kUpdate, constants, on_gpu.Part(c.first, c.count));
    AwaitAll(Queue::kUpdate);
  }
  Fetch(Queue::kUpdate, gpu.p, on_gpu.parameters);
  Fetch(Queue::kUpdate, gpu.m, on_gpu.first_moment);
  Fetch(Queue::kUpdate, gpu.v, on_gpu.second_moment);
  Fetch(Queue::kUpdate, gpu.copy, copy);
  AwaitAll(Queue::kUpdate);
  EXPECT_EQ("", Differences(cpu, gpu));
}

constexpr auto kFloat32 = GradientType::kFloat32;
constexpr auto kBfloat16 = GradientType::kBfloat16;
INSTANTIATE_TEST_SUITE_P(OfAnySizeAndAlignment, CudaAdamW,
                         testing::Values(StepCase{0, 1, kFloat32, true}, StepCase{0, 3, kBfloat16, true},
                                         StepCase{0, 4096, kBfloat16, true}, StepCase{0, 4097, kFloat32, false},
                                         StepCase{1, 100'003, kBfloat16, true}, StepCase{2, 99'999, kFloat32, true},
                                         StepCase{3, 7, kBfloat16, false}, StepCase{0, 3'000'001, kBfloat16, true}));

class CudaInterleavedUpdate : public CudaUpdate, public testing::WithParamInterface<int64_t> {};

TEST_P(CudaInterleavedUpdate, GivesTheCpusBits) {
  constexpr int64_t kCount = 1'000'003, kSubgroup = 150'000;
  const SubgroupPlan plan = {.parameters = kCount, .subgroup = kSubgroup, .k = GetParam()};
  // Rules that change inside subgroups, at odd places.
  const std::vector<DecaySegment> segments = {{70'001, true}, {3, false}, {429'999, true}, {500'000, false}};
  Values cpu(kCount), gpu(kCount);
  FillState(7, kCount, cpu);
  FillState(7, kCount, gpu);
  core::ThreadTeam team(2);
  void* const gradients = *device_->Allocate(kCount * sizeof(uint16_t));
  auto* const parameters = static_cast<uint16_t*>(OnDevice(gpu.copy));
  AwaitAll(Queue::kUpdate);
  PinnedPool pool(device_.get());
  for (const HostArray* array : {&gpu.p, &gpu.m, &gpu.v}) {
    ASSERT_TRUE(device_->Pin(array->data(), array->bytes()).ok());
  }
  auto update = InterleavedUpdate::OnDevice({gpu.p.Values<float>(), gpu.m.Values<float>(), gpu.v.Values<float>()},
                                            segments, plan, &team, nullptr, device_.get(),
                                            {gradients, GradientType::kBfloat16, parameters, &pool});
  ASSERT_TRUE(update.ok()) << update.status();
  AdamWParameters plain = kAdamW;
  plain.weight_decay = 0;
  for (int64_t t = 1; t <= 4; ++t) {
    FillGradient(GradientType::kBfloat16, 200 + t, kCount, gpu.gradient);
    // Backward: the later half is final first.
    constexpr int64_t kHalf = kCount / 2;
    for (const auto& [first, count] : {std::pair(kHalf, kCount - kHalf), std::pair(int64_t{0}, kHalf)}) {
      device_->CopyToDevice(Queue::kCompute, static_cast<uint16_t*>(gradients) + first,
                            gpu.gradient.Values<uint16_t>().data() + first, count * sizeof(uint16_t));
      (*update)->GradientsReady(first, count);
    }
    ASSERT_TRUE((*update)->Step(kAdamW, t).ok());
    ASSERT_TRUE((*update)->Finish().ok());  // the gradient is written again
    const AdamWArrays all = {.gradient = gpu.gradient.data(),
                             .gradient_type = GradientType::kBfloat16,
                             .first_moment = cpu.m.Values<float>().data(),
                             .second_moment = cpu.v.Values<float>().data(),
                             .parameters = cpu.p.Values<float>().data(),
                             .bfloat16_copy = cpu.copy.Values<uint16_t>().data(),
                             .count = kCount};
    int64_t first = 0;
    for (const DecaySegment& segment : segments) {
      AdamWStep(MakeConstants(segment.decays ? kAdamW : plain, t), all.Part(first, segment.count));
      first += segment.count;
    }
  }
  Fetch(Queue::kCompute, gpu.copy, parameters);
  AwaitAll(Queue::kCompute);
  EXPECT_EQ("", Differences(cpu, gpu));
  update->reset();
  EXPECT_TRUE(device_->status().ok()) << device_->status();
}

INSTANTIATE_TEST_SUITE_P(ForAnyK, CudaInterleavedUpdate, testing::Values(1, 2, 3, 100, core::kAllOnCpu),
                         [](const auto& k) { return "k" + core::InterleaveName(k.param); });

TEST_F(CudaUpdate, PinnedMemoryMayBePinnedAlready) {
  const HostArray array(size_t{3} << 20);
  auto* const inside = array.Values<char>().data() + 100;
  ASSERT_TRUE(device_->Pin(array.data(), array.bytes()).ok());
  EXPECT_TRUE(device_->Pin(inside, 5000).ok());
  device_->Unpin(inside);
  device_->Unpin(array.data());
  EXPECT_TRUE(device_->Pin(inside, 5000).ok());  // not aligned
  EXPECT_EQ(device_->Pin(array.data(), array.bytes()).code(), absl::StatusCode::kFailedPrecondition);
  device_->Unpin(inside);
  EXPECT_TRUE(device_->status().ok()) << device_->status();
}

TEST_F(CudaUpdate, TooMuchMemoryIsAskedForInVain) {
  const absl::StatusOr<void*> memory = device_->Allocate(size_t{1} << 50);
  EXPECT_EQ(memory.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(memory.status().message()), testing::HasSubstr("1125899906842624 bytes"));
  EXPECT_TRUE(device_->status().ok()) << "the device is as good as before";
}

using CudaUpdateDeathTest = CudaUpdate;

// In a process of its own, which loses its CUDA context.
TEST_F(CudaUpdateDeathTest, AnErrorShowsInTheStatusFromThenOn) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto fail = [&] {
    device_->AdamW(Queue::kUpdate, {}, {.count = 1});  // on null pointers
    const Device::Event done = device_->MakeEvent();
    device_->Record(done, Queue::kUpdate);
    device_->AwaitOnHost(done);
    const absl::Status first = device_->status();
    device_->CopyToHost(Queue::kFlush, nullptr, nullptr, 1);
    std::cerr << first;
    std::exit(device_->status() == first ? 7 : 1);
  };
  EXPECT_EXIT(fail(), testing::ExitedWithCode(7), "INTERNAL: CUDA: ");
}

TEST(MakeCudaDevice, SaysWhatIsMissing) {
  const auto device = MakeCudaDevice(1000);
  ASSERT_FALSE(device.ok());
  EXPECT_THAT(std::string(device.status().message()), testing::HasSubstr("no CUDA device"));
}

}  // namespace
}  // namespace causeway::offload
