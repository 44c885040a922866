#include "worker/model/gpu_llama.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "core/model_manifest.h"
#include "tests/worker/device/fake_backend.h"
#include "tests/worker/model/test_values.h"
#include "worker/device/product_attention.h"
#include "worker/model/llama_block.h"

namespace causeway::worker {
namespace {

struct Case {
  std::string name;
  core::LlamaConfig llama;
  int64_t rows = 3;
};

Case Tied() { return {"tied", TinyLlama()}; }
Case OwnHead() {
  Case other{"own_head", TinyLlama()};
  other.llama.tie_word_embeddings = false;
  return other;
}
Case OneRowWide() {
  return {"one_row_wide",
          {.hidden_size = 192,
           .intermediate_size = 131,
           .num_hidden_layers = 1,
           .num_attention_heads = 3,
           .num_key_value_heads = 1,
           .vocab_size = 300,
           .max_position_embeddings = 5},
          1};
}

Batch BatchOf(const Case& c) {
  Batch batch;
  for (int64_t i = 0; i < c.rows * c.llama.max_position_embeddings; ++i) {
    batch.tokens.push_back(static_cast<int32_t>(core::SplitMix64(i) % 40 % c.llama.vocab_size));  // some occur often
    batch.targets.push_back(static_cast<int32_t>(core::SplitMix64(i + 1000) % c.llama.vocab_size));
  }
  return batch;
}

struct Pass {
  double loss = 0;
  std::vector<float> gradients;
};

struct Setting {
  explicit Setting(const Case& c)
      : manifest(core::LlamaManifest(c.llama)),
        parameters(manifest),
        gradients(manifest),
        batch(BatchOf(c)),
        tied(c.llama.tie_word_embeddings) {
    InitializeLlama(c.llama, 1, parameters);
  }
  // A tied head's after all others.
  std::vector<float> NoGradients() const {
    return std::vector<float>(gradients.Flat().size() + (tied ? parameters[0].size() : 0));
  }
  std::vector<float> Summed(std::vector<float> all) const {
    const std::span<float> values(all);
    if (tied) AddTiedHead(values.last(parameters[0].size()), values.first(parameters[0].size()));
    all.resize(gradients.Flat().size());
    return all;
  }
  core::Manifest manifest;
  TensorValues parameters, gradients;
  Batch batch;
  bool tied;
};

// `rounded`: with the parameters that a bfloat16 model has.
Pass OnCpu(const Case& c, bool rounded = false) {
  Setting s(c);
  for (float& value : s.parameters.Flat()) value = rounded ? core::FromBfloat16(core::ToBfloat16(value)) : value;
  LlamaModel model(c.llama, c.rows, c.llama.max_position_embeddings, LlamaModel::Use::kTraining);
  const double loss = model.Forward(s.parameters.View(), s.batch);
  model.Backward(s.parameters.View(), s.batch, s.gradients.MutableView(), 0.5f);
  return {loss, {s.gradients.Flat().begin(), s.gradients.Flat().end()}};
}

// Keeps `out` as its statistics, too, and adds their difference to dq of the first rows: none, where both come back.
class KeepingAttention final : public DeviceAttention {
 public:
  KeepingAttention(const AttentionShape& shape, ComputeBackend* backend)
      : count_(shape.batch * shape.sequence * shape.heads * shape.head_size),
        backend_(backend),
        products_(MakeProductAttention(shape, ValueType::kFloat32, backend)) {}

  AttentionKind kind() const override { return AttentionKind::kOwn; }
  int64_t statistics() const override { return count_; }
  int64_t buffer_bytes() const override { return products_->buffer_bytes(); }
  void SetBuffer(void* memory) override { products_->SetBuffer(memory); }
  void Forward(const void* qkv, void* out, float* statistics) override {
    products_->Forward(qkv, out, nullptr);
    backend_->Launch(offload::Queue::kCompute,
                     CopyKernel<float, float>{static_cast<const float*>(out), statistics, count_});
  }
  void Backward(const void* qkv, const void* out, const float* statistics, const void* dout, void* dqkv) override {
    products_->Backward(qkv, out, statistics, dout, dqkv);
    constexpr float kShare = 0.01f;  // their difference shows, their roundings do not
    const auto add = [&](const void* values, float sign) {
      backend_->Launch(offload::Queue::kCompute,
                       RebaseKernel{static_cast<const float*>(values), static_cast<float*>(dqkv), count_, sign});
    };
    add(out, kShare);
    add(statistics, -kShare);
  }

 private:
  const int64_t count_;
  ComputeBackend* const backend_;
  const std::unique_ptr<DeviceAttention> products_;
};

Pass OnBackend(const Case& c, FakeBackend& backend, GpuLlama::Options options) {
  Setting s(c);
  const ValueType type = options.type;
  options.batch_rows = c.rows;
  options.sequence = c.llama.max_position_embeddings;
  auto llama = GpuLlama::Make(c.llama, options, &backend);
  EXPECT_TRUE(llama.ok()) << llama.status();
  std::vector<uint16_t> narrow;
  for (const float value : s.parameters.Flat()) narrow.push_back(core::ToBfloat16(value));
  const void* const parameters =
      type == ValueType::kFloat32 ? static_cast<const void*>(s.parameters.Flat().data()) : narrow.data();
  EXPECT_TRUE((*llama)->Begin(PreparedBatch(s.batch)).ok());
  (*llama)->Forward(parameters);
  std::vector<float> gradients = s.NoGradients();
  (*llama)->Backward(parameters, gradients.data(), 0.5f);
  offload::Device& device = backend.device();
  const auto done = device.MakeEvent();
  device.Record(done, offload::Queue::kCompute);
  device.AwaitOnHost(done);
  const auto loss = (*llama)->Loss();
  EXPECT_TRUE(loss.ok()) << loss.status();
  return {*loss, s.Summed(std::move(gradients))};
}

Pass OnFake(const Case& c, uint64_t seed, ValueType type = ValueType::kFloat32,
            Recompute recompute = Recompute::kNone) {
  FakeBackend backend(seed);
  return OnBackend(c, backend, {.type = type, .recompute = recompute});
}

// ‖a − b‖ ≤ share · ‖b‖ for each tensor.
void ExpectGradientsNear(const Case& c, const std::vector<float>& a, const std::vector<float>& b, double share) {
  size_t first = 0;
  for (const core::TensorSpec& spec : core::LlamaManifest(c.llama)) {
    double difference = 0, norm = 0;
    for (size_t i = first; i < first + spec.NumValues(); ++i) {
      difference += std::pow(static_cast<double>(a[i]) - b[i], 2);
      norm += std::pow(static_cast<double>(b[i]), 2);
    }
    EXPECT_GT(norm, 0) << spec.name;
    EXPECT_LE(std::sqrt(difference / norm), share) << spec.name;
    first += spec.NumValues();
  }
}

class GpuLlamaTest : public ::testing::TestWithParam<Case> {};

TEST_P(GpuLlamaTest, LossAndGradientsAreThoseOfTheCpusModel) {
  const Pass cpu = OnCpu(GetParam()), fake = OnFake(GetParam(), 0);
  EXPECT_NEAR(fake.loss, cpu.loss, 1e-5 * cpu.loss);
  ExpectGradientsNear(GetParam(), fake.gradients, cpu.gradients, 1e-5);
}

TEST_P(GpuLlamaTest, InBfloat16GradientsAreWithinAHundredthOfTheirNorm) {
  const Pass cpu = OnCpu(GetParam(), /*rounded=*/true), fake = OnFake(GetParam(), 0, ValueType::kBfloat16);
  EXPECT_NEAR(fake.loss, cpu.loss, 1e-2 * cpu.loss);
  ExpectGradientsNear(GetParam(), fake.gradients, cpu.gradients, 1e-2);
}

TEST_P(GpuLlamaTest, AHeadInChunksOfRowsHasTheGradientsOfAWholeOneInLessMemory) {
  const Pass whole = OnFake(GetParam(), 0);
  for (const int64_t limit : {1, 3 * 320 * 4, 8 * 320 * 4}) {  // one row, a few: a row has 64 to 320 logits
    FakeBackend backend(1);
    const Pass chunks = OnBackend(GetParam(), backend, {.logits_bytes = limit});
    EXPECT_NEAR(chunks.loss, whole.loss, 1e-6 * whole.loss);
    ExpectGradientsNear(GetParam(), chunks.gradients, whole.gradients, 1e-6);
  }
  FakeBackend backend;
  GpuLlama::Options options{.batch_rows = GetParam().rows, .sequence = GetParam().llama.max_position_embeddings};
  const int64_t before = *GpuLlama::Bytes(GetParam().llama, options, &backend);
  options.logits_bytes = 1;
  EXPECT_LT(*GpuLlama::Bytes(GetParam().llama, options, &backend), before);
}

TEST_P(GpuLlamaTest, GradientsOfMicroBatchesAddUpAndAStepLeavesNothingToTheNext) {
  Setting s(GetParam());
  LlamaModel model(GetParam().llama, GetParam().rows, GetParam().llama.max_position_embeddings,
                   LlamaModel::Use::kTraining);
  TensorValues expected(s.manifest);
  FakeBackend backend(1);
  const auto llama =
      GpuLlama::Make(GetParam().llama,
                     {.batch_rows = GetParam().rows, .sequence = GetParam().llama.max_position_embeddings}, &backend);
  for (int step = 0; step < 2; ++step) {
    expected.Clear();
    std::vector<float> gradients = s.NoGradients();
    for (const bool last : {false, false, true}) {
      model.Forward(s.parameters.View(), s.batch);
      model.Backward(s.parameters.View(), s.batch, expected.MutableView(), 0.5f, nullptr, last);
      ASSERT_TRUE((*llama)->Begin(PreparedBatch(s.batch)).ok());
      (*llama)->Forward(s.parameters.Flat().data());
      (*llama)->Backward(s.parameters.Flat().data(), gradients.data(), 0.5f);
    }
    ASSERT_TRUE((*llama)->Loss().ok());
    ASSERT_TRUE((*llama)->AwaitGradients([](int) {}).ok());
    const std::span<const float> cpu = std::as_const(expected).Flat();
    ExpectGradientsNear(GetParam(), s.Summed(std::move(gradients)), {cpu.begin(), cpu.end()}, 1e-5);
  }
}

TEST_P(GpuLlamaTest, RecomputationChangesNoBit) {
  for (const ValueType type : {ValueType::kFloat32, ValueType::kBfloat16}) {
    const Pass kept = OnFake(GetParam(), 0, type);
    for (const Recompute recompute : {Recompute::kNormSwiglu, Recompute::kBlock}) {
      const Pass made_again = OnFake(GetParam(), 0, type, recompute);
      EXPECT_EQ(made_again.loss, kept.loss);
      EXPECT_TRUE(made_again.gradients == kept.gradients) << RecomputeName(recompute);
    }
  }
}

TEST_P(GpuLlamaTest, AttentionHasItsOutputAndStatisticsOfTheLayerInBackward) {
  const Pass cpu = OnCpu(GetParam());
  const AttentionShape shape =
      LlamaShape(GetParam().llama, GetParam().rows, GetParam().llama.max_position_embeddings).attention;
  for (const Recompute recompute : kAllRecompute) {
    FakeBackend backend(1);
    const Pass kept =
        OnBackend(GetParam(), backend,
                  {.recompute = recompute, .attention = std::make_shared<KeepingAttention>(shape, &backend)});
    ExpectGradientsNear(GetParam(), kept.gradients, cpu.gradients, 1e-4);
  }
}

// Gradients as they are when AwaitGradients says that they are final, with some of its waits forgotten.
std::vector<float> WhenFinal(const Case& c, const std::set<offload::Device::Event>& forgotten,
                             std::set<offload::Device::Event>* waits = nullptr) {
  constexpr uint64_t kLazy = 4;  // FakeQueues runs what it must
  Setting s(c);
  FakeBackend backend(kLazy);
  for (const auto event : forgotten) backend.device().ForgetOnHost(event);
  const auto llama =
      GpuLlama::Make(c.llama, {.batch_rows = c.rows, .sequence = c.llama.max_position_embeddings}, &backend);
  const float* const parameters = s.parameters.Flat().data();
  std::vector<float> gradients = s.NoGradients();
  EXPECT_TRUE((*llama)->Begin(PreparedBatch(s.batch)).ok());
  (*llama)->Forward(parameters);
  (*llama)->Backward(parameters, gradients.data(), 0.5f);
  const std::set<offload::Device::Event> before = backend.device().waits_on_host();
  std::vector<float> final(gradients.size());
  size_t end = final.size();
  EXPECT_TRUE((*llama)
                  ->AwaitGradients([&](int tensor) {
                    const int64_t first = s.gradients.First(tensor);
                    std::copy(gradients.begin() + first, gradients.begin() + end, final.begin() + first);
                    end = first;
                  })
                  .ok());
  EXPECT_EQ(end, 0u);
  for (const auto event : backend.device().waits_on_host()) {
    if (waits != nullptr && !before.contains(event)) waits->insert(event);
  }
  return final;
}

TEST_P(GpuLlamaTest, GradientsAreFinalWhenTheHostHearsSoAndEachWaitThatIsForgottenIsNoticed) {
  std::set<offload::Device::Event> waits;
  const std::vector<float> whole = WhenFinal(GetParam(), {}, &waits);
  EXPECT_TRUE(Setting(GetParam()).Summed(whole) == OnFake(GetParam(), 0).gradients);
  EXPECT_EQ(waits.size(), 2 + static_cast<size_t>(GetParam().llama.num_hidden_layers));
  for (const auto event : waits) EXPECT_FALSE(WhenFinal(GetParam(), {event}) == whole) << "event " << event;
}

TEST_P(GpuLlamaTest, NoOrderOfQueuesAndLanesChangesABit) {
  const Pass ascending = OnFake(GetParam(), 0);
  for (const uint64_t seed : {1, 2, 3, 6, 7}) {
    const Pass other = OnFake(GetParam(), seed);
    EXPECT_EQ(other.loss, ascending.loss) << seed;
    EXPECT_TRUE(other.gradients == ascending.gradients) << seed;
  }
}

TEST(GpuShapeTest, ARowThatBfloat16ProductsDoNotTakeIsNamedWithItsMultiple) {
  const auto words = [](const core::LlamaConfig& config, ValueType type) {
    return std::string(CheckGpuShape(config, type).message());
  };
  core::LlamaConfig config = TinyLlama();
  EXPECT_EQ(words(config, ValueType::kBfloat16), "");
  config.intermediate_size = 131;
  EXPECT_THAT(words(config, ValueType::kBfloat16),
              ::testing::HasSubstr("model.intermediate_size: expected a multiple of 8"));
  EXPECT_THAT(words(config, ValueType::kBfloat16), ::testing::HasSubstr("got 131; use --compute_dtype=float32"));
  EXPECT_EQ(words(config, ValueType::kFloat32), "");
}

INSTANTIATE_TEST_SUITE_P(Shapes, GpuLlamaTest, ::testing::Values(Tied(), OwnHead(), OneRowWide()),
                         [](const auto& info) { return info.param.name; });

TEST(GpuLlamaMemoryTest, RecomputationNeedsLessOfItAndTheArenaSaysWhatItHolds) {
  FakeBackend backend;
  int64_t before = std::numeric_limits<int64_t>::max();
  for (const Recompute recompute : kAllRecompute) {
    const auto llama = GpuLlama::Make(TinyLlama(), {.batch_rows = 8, .sequence = 12, .recompute = recompute}, &backend);
    ASSERT_TRUE(llama.ok());
    EXPECT_LT((*llama)->arena().bytes(), before) << RecomputeName(recompute);
    before = (*llama)->arena().bytes();
    EXPECT_THAT((*llama)->arena().Description(), ::testing::HasSubstr("activations"));
  }
}

}  // namespace
}  // namespace causeway::worker
