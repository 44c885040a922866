#include "worker/library/external_model.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "core/fragment_map.h"
#include "core/model_manifest.h"
#include "replica/replica.h"
#include "tests/worker/device/fake_backend.h"
#include "tests/worker/model/test_values.h"
#include "worker/device/device_encoder.h"
#include "worker/library/external_store.h"

namespace causeway::worker {
namespace {

using core::TensorKind;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

core::RunConfig External() {
  core::RunConfig config;
  config.model_kind = core::ModelKind::kExternal;
  return config;
}

std::string Message(const std::string& model, const core::RunConfig& config = External()) {
  return std::string(ParseExternalModel(model, config).status().message());
}

std::string OneTensor(const std::string& more) {
  return R"({"tensors": [{"name": "w", "shape": [2, 3])" + more + "}]}";
}

TEST(ExternalModel, KindAndLayerFollowFromTheNameUnlessTheyAreGiven) {
  const auto model = ParseExternalModel(R"({"tensors": [
      {"name": "transformer.wte.weight", "shape": [10, 4]},
      {"name": "transformer.h.11.attn.c_attn.weight", "shape": [4, 12]},
      {"name": "transformer.h.11.ln_1.bias", "shape": [4]},
      {"name": "model.layers.2.mlp.experts.up", "shape": [8, 4, 4]},
      {"name": "lm_head.weight", "shape": [10, 4]},
      {"name": "adapter", "shape": [4, 4], "kind": "expert", "layer": 3},
      {"name": "norm.running_mean", "shape": [4], "kind": "buffer"}]})",
                                        External());
  ASSERT_TRUE(model.ok()) << model.status();
  std::vector<TensorKind> kinds;
  std::vector<int> layers;
  for (const core::TensorSpec& tensor : model->manifest) {
    kinds.push_back(tensor.kind);
    layers.push_back(tensor.layer);
  }
  EXPECT_THAT(kinds, ElementsAre(TensorKind::kEmbedding, TensorKind::kMatrix, TensorKind::kNorm, TensorKind::kExpert,
                                 TensorKind::kHead, TensorKind::kExpert, TensorKind::kBuffer));
  EXPECT_THAT(layers, ElementsAre(core::kNoLayer, 11, 11, 2, core::kNoLayer, 3, core::kNoLayer));
}

// A PyTorch model with Hugging Face's names is taken for what the native trainer declares.
TEST(ExternalModel, NamesOfALlamaGiveTheKindsAndLayersOfTheNativeOne) {
  const core::Manifest llama = core::LlamaManifest({.tie_word_embeddings = false});
  for (const core::TensorSpec& tensor : llama) {
    EXPECT_EQ(KindOf(tensor.name, tensor.shape), tensor.kind) << tensor.name;
    EXPECT_EQ(LayerOf(tensor.name), tensor.layer) << tensor.name;
  }
}

TEST(ExternalModel, TensorsOfARunThatKnowsItsModelMayComeInAnyOrder) {
  core::RunConfig config;
  config.model_kind = core::ModelKind::kSynthetic;
  config.synthetic.tensors = {{.name = "a", .shape = {2}}, {.name = "b", .shape = {3}}};
  const auto model = ParseExternalModel(
      R"({"tensors": [{"name": "b", "shape": [3], "dtype": "bfloat16"}, {"name": "a", "shape": [2]}]})", config);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->manifest[0].name, "a");
  EXPECT_THAT(model->given_as, ElementsAre(1, 0));
  EXPECT_EQ(model->tensors[1].dtype, core::DType::kBfloat16);
  EXPECT_EQ(model->tensors[1].values, 3);
  EXPECT_THAT(Message(R"({"tensors": [{"name": "a", "shape": [2]}]})", config),
              HasSubstr("expected tensor b [3] matrix of layer 1 of the run's model, got none of that name"));
  EXPECT_THAT(Message(R"({"tensors": [{"name": "a", "shape": [2]}, {"name": "b", "shape": [4]}]})", config),
              HasSubstr("expected tensor b [3] matrix of layer 1, got b [4]"));
  EXPECT_THAT(Message(R"({"tensors": [{"name": "a", "shape": [2]}, {"name": "b", "shape": [3]},
                                      {"name": "c", "shape": [1]}]})",
                      config),
              HasSubstr("got also c [1]"));
}

TEST(ExternalModel, WhatCannotBeMeantIsNamed) {
  EXPECT_EQ(Message("[1]"), "model: expected an object in JSON, got [1]");
  EXPECT_EQ(Message("{}"), "model: tensors: expected a list of at least one object, got null");
  EXPECT_EQ(Message(OneTensor(R"(, "dtype": "float8")")),
            "tensor w: dtype: expected float32, bfloat16 or float16 of a tensor that is trained, got float8");
  EXPECT_EQ(Message(OneTensor(R"(, "kind": "vector")")),
            "tensor w: kind: expected matrix, embedding, norm, head, expert or buffer, got vector");
  EXPECT_EQ(Message(OneTensor(R"(, "layer": "one")")), "tensor w: layer: expected an integer, got \"one\"");
  EXPECT_EQ(Message(OneTensor(R"(, "values_digest": "xyz")")),
            "tensor w: values_digest: expected up to 16 hexadecimal digits, got xyz");
  EXPECT_EQ(Message(OneTensor(R"(, "shapes": 1)")), "tensor w: expected keys that causeway.h lists, got \"shapes\"");
}

TEST(ExternalModel, WhatTheSiteTrainsOnMayBeSaid) {
  constexpr char kTensors[] = R"({"tensors": [{"name": "w", "shape": [2]}])";
  const auto parse = [&](const std::string& data) { return ParseExternalModel(kTensors + data + "}", External()); };
  EXPECT_EQ(parse("")->data.training, std::nullopt);
  const auto model = parse(R"(, "data": {"tokens": 12, "digest": "00ff"})");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->data.training, (core::DataFingerprint{12, 255}));
  EXPECT_EQ(parse(R"(, "data": {"tokens": 0})").status().message(), "data: tokens: expected 1 or more, got 0");
  EXPECT_EQ(parse(R"(, "data": {"tokens": 1, "digest": "x"})").status().message(),
            "data: digest: expected up to 16 hexadecimal digits, got x");
}

TEST(ExternalModel, FrozenTensorMayHaveAnyType) {
  const auto model = ParseExternalModel(R"({"tensors": [
      {"name": "base", "shape": [2, 2], "dtype": "float8_e4m3fn", "frozen": true, "values_digest": "ff"},
      {"name": "lora", "shape": [2, 2]}]})",
                                        External());
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_FALSE(model->manifest[0].synced());
  EXPECT_EQ(model->manifest[0].values_digest, 255);
  EXPECT_TRUE(model->manifest[1].synced());
}

// Contributions of another program's θ on a device: the program takes KEEPs, and the bytes are the host's.

TEST(ExternalEncoderTest, TheProgramsThetaIsKeptAndEncodedOnTheDevice) {
  const core::Manifest manifest = {{"a", {3, 4000}}, {"b", {257}}};
  const core::FragmentMap map(manifest, {{0, 1}});
  const std::vector<std::vector<float>> theta = {RandomValues(1, 12'000), RandomValues(2, 257)};
  FakeBackend backend(5);
  ExternalStore store({{.values = 12'000}, {.values = 257}}, [] {});
  const auto keep = [&](const replica::UnitRanges& ranges, float* to, offload::Device::Event taken) {
    return store.KeepTheta(ranges, to, taken);
  };
  std::vector<void*> streams, ordered;
  store.EncodeOnDevice(std::make_shared<DeviceEncoder>(&backend, keep, DeviceEncoder::Options{.parameters = 12'257}),
                       {.copy =
                            [&](void* stream, float* to, const void* from, int64_t count, int event) {
                              streams.push_back(stream);
                              backend.Launch(offload::Queue::kCompute,
                                             CopyKernel<float, float>{static_cast<const float*>(from), to, count});
                              backend.device().Record(event, offload::Queue::kCompute);
                              return absl::OkStatus();
                            },
                        .order_after =
                            [&](void* event) {
                              ordered.push_back(event);
                              return absl::OkStatus();
                            },
                        .await = [](void*) { return absl::OkStatus(); }});
  core::RunConfig config;
  config.codec.up = core::CodecId::kInt4;
  core::BufferPool pool;
  replica::Replica there(map, 0, config, &pool), here(map, 0, config, &pool);
  std::vector<float> staging(map.fragment(0).padded_values());
  std::ranges::copy(theta[0], staging.begin());
  std::ranges::copy(theta[1], staging.begin() + 3 * core::kUnitValues);
  int program_stream = 0;
  for (int round = 0; round < 2; ++round) {
    absl::StatusOr<int64_t> ticket;
    std::jthread site([&] { ticket = store.encoder()->BeginKeep(replica::RangesOf(map.fragment(0))); });
    for (int done = 0; done < 2;) {
      const std::optional<WorkPiece> piece = store.Take();
      if (!piece) {
        std::this_thread::yield();
        continue;
      }
      EXPECT_EQ(piece->kind, WorkPiece::Kind::kKeep);
      EXPECT_EQ(store.CarryOut(piece->id, &program_stream).code(), absl::StatusCode::kInvalidArgument);
      ASSERT_TRUE(store.Keep(piece->id, theta[piece->tensor].data() + piece->first, &program_stream).ok());
      ++done;
    }
    site.join();
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    const auto encoded = there.EncodeKept(*store.encoder(), *ticket);
    ASSERT_TRUE(encoded.ok()) << encoded.status();
    EXPECT_EQ(*encoded, *here.EncodeContribution(staging));
    store.encoder()->End(*ticket);
    there.Resolve(/*merged=*/true);
    here.Resolve(/*merged=*/true);
  }
  EXPECT_EQ(streams, std::vector<void*>(4, &program_stream));

  // A move by an anchor that is on the device: the piece says where, and its end is an event there.
  const replica::UnitRanges ranges = replica::RangesOf(map.fragment(0));
  const std::vector<float> anchor(map.fragment(0).padded_values(), 0.5f);
  ASSERT_TRUE(store.encoder()->TakeAnchor(ranges, anchor, 77).ok());
  std::jthread site([&] { EXPECT_TRUE(store.Move(ranges, replica::Movement::Mix(0.5f, anchor, 77)).ok()); });
  for (int done = 0; done < 2;) {
    const std::optional<WorkPiece> piece = store.Take();
    if (!piece) continue;
    const int64_t at = piece->tensor == 0 ? 0 : 3 * core::kUnitValues;
    EXPECT_EQ(piece->on_device, store.encoder()->AnchorOf(ranges, 77) + at);
    ASSERT_TRUE(store.DoneAfter(piece->id, &program_stream).ok());
    ++done;
  }
  EXPECT_EQ(ordered, std::vector<void*>(2, &program_stream));
}

}  // namespace
}  // namespace causeway::worker
