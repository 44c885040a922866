#include "worker/library/external_store.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "core/check.h"
#include "core/digest.h"
#include "core/fragment_map.h"
#include "core/layout.h"
#include "core/model_manifest.h"
#include "core/outer_step.h"
#include "core/random.h"
#include "replica/host_store.h"
#include "replica/replica.h"
#include "tests/worker/device/fake_backend.h"
#include "tests/worker/model/test_values.h"
#include "worker/device/device_encoder.h"
#include "worker/library/external_model.h"

namespace causeway::worker {
namespace {

using core::DType;
using core::kUnitValues;
using core::TensorKind;
using replica::Movement;
using replica::UnitRanges;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<float> Noise(size_t count, uint64_t stream) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>(core::UnitInterval(core::HashCombine(stream, i)) - 0.5);
  }
  return values;
}

// A program with one tensor, which does its work at the test's word.
class Program {
 public:
  explicit Program(const std::vector<float>& theta, DType dtype = DType::kFloat32)
      : dtype_(dtype),
        theta_(theta.size() * core::BytesOf(dtype)),
        store_({{.values = std::ssize(theta), .dtype = dtype}}, [this] { Wake(); }) {
    core::Store(dtype_, theta, theta_.data());
  }

  ExternalStore& store() { return store_; }
  std::vector<float> theta() const {
    std::vector<float> values(theta_.size() / core::BytesOf(dtype_));
    core::Load(dtype_, theta_.data(), values);
    return values;
  }
  int pieces() const { return pieces_; }

  // Does pieces until `outcome` is there.
  absl::Status WorkUntil(std::future<absl::Status> outcome) {
    while (outcome.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
      if (const std::optional<WorkPiece> piece = Next(outcome)) Do(*piece);
    }
    return outcome.get();
  }

  // Does the pieces that `operation`, on a thread of the site, waits for.
  absl::Status Work(const std::function<absl::Status()>& operation) {
    return WorkUntil(std::async(std::launch::async, [&] {
      const absl::Status outcome = operation();
      Wake();
      return outcome;
    }));
  }

  absl::Status Digest(uint64_t& digest) {
    return Work([&]() -> absl::Status {
      ASSIGN_OR_RETURN(digest, store_.Digest());
      return absl::OkStatus();
    });
  }

  absl::Status Move(const UnitRanges& ranges, const Movement& movement) {
    return Work([&] { return store_.Move(ranges, movement); });
  }

 private:
  void Wake() {
    core::MutexLock lock(mutex_);
    woken_ = true;
    changed_.NotifyAll();
  }

  std::optional<WorkPiece> Next(const std::future<absl::Status>&) {
    if (std::optional<WorkPiece> piece = store_.Take()) return piece;
    core::MutexLock lock(mutex_);
    lock.WaitFor(changed_, std::chrono::milliseconds(10), [this] { return std::exchange(woken_, false); });
    return store_.Take();
  }

  void Do(const WorkPiece& piece) {
    ++pieces_;
    EXPECT_TRUE(store_.CarryOut(piece.id, theta_.data() + piece.first * core::BytesOf(dtype_)).ok());
  }

  const DType dtype_;
  std::vector<std::byte> theta_;
  int pieces_ = 0;
  core::Mutex mutex_;
  core::Condition changed_;
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
  ExternalStore store_;
};

constexpr int64_t kValues = 3 * kUnitValues - 77;  // three units, the last with padding
const UnitRanges kLastTwo = {{0, 1, 2}};

TEST(ExternalStore, MovesFloat32ToTheBitsOfTheHostStore) {
  for (const bool mixes : {true, false}) {
    const std::vector<float> other = Noise(2 * kUnitValues, 2);
    const Movement movement = mixes ? Movement::Mix(0.3f, other) : Movement::Step(0.7f, other);
    Program program(Noise(kValues, 1));
    ASSERT_TRUE(program.Move(kLastTwo, movement).ok());
    std::vector<float> expected = Noise(kValues, 1);
    replica::HostStore host({expected}, nullptr);
    ASSERT_TRUE(host.Move(kLastTwo, movement).ok());
    EXPECT_EQ(program.theta(), expected) << mixes;
  }
}

TEST(ExternalStore, SettingThetaIsOneWriteOfEachRange) {
  Program program(Noise(kValues, 1));
  const std::vector<float> anchor(2 * kUnitValues, 0.25f);
  ASSERT_TRUE(program.Move(kLastTwo, Movement::Mix(0, anchor)).ok());
  EXPECT_EQ(program.pieces(), 1);
  const std::vector<float> theta = program.theta();
  EXPECT_THAT(std::span(theta).subspan(kUnitValues), Each(0.25f));
  EXPECT_EQ(theta[0], Noise(kValues, 1)[0]);
}

TEST(ExternalStore, MovesThetaOfSixteenBitsInFloat32AndRounds) {
  for (const DType dtype : {DType::kBfloat16, DType::kFloat16}) {
    for (const float alpha : {0.0f, 0.5f}) {
      Program program(Noise(kValues, 1), dtype);
      std::vector<float> expected = program.theta();
      const std::vector<float> anchor = Noise(3 * kUnitValues, 3);
      const std::span by = std::span(anchor).first(kValues);
      core::MixAnchor(alpha, by, expected);
      if (dtype == DType::kBfloat16 && alpha > 0) core::RoundMix(by, program.theta(), expected);
      ASSERT_TRUE(program.Move({{0, 0, 3}}, Movement::Mix(alpha, anchor)).ok());
      core::RoundTo(dtype, expected, expected);
      EXPECT_EQ(program.theta(), expected) << core::DTypeName(dtype) << alpha;
    }
  }
}

TEST(ExternalStore, ReadsThetaOfSixteenBitsAsFloat32) {
  Program program(Noise(kValues, 1), DType::kFloat16);
  std::vector<float> staging(3 * kUnitValues);
  ASSERT_TRUE(program.Work([&] { return program.store().Read({{0, 0, 3}}, staging); }).ok());
  staging.resize(kValues);
  EXPECT_EQ(staging, program.theta());
}

TEST(ExternalStore, HandsOutTheAnchorAsFloat32) {
  const std::vector<float> anchor = Noise(kValues, 4);
  ExternalStore store({{.values = kValues, .dtype = DType::kBfloat16}}, [] {});
  std::vector<std::vector<float>> handed_out = {anchor};
  std::future<absl::Status> done = std::async(std::launch::async, [&] { return store.HandOutAnchor(handed_out); });
  std::optional<WorkPiece> piece;
  while (!piece) piece = store.Take();
  std::vector<float> got(kValues);
  ASSERT_TRUE(store.CarryOut(piece->id, got.data()).ok());
  EXPECT_TRUE(done.get().ok());
  EXPECT_EQ(got, anchor);
}

TEST(ExternalStore, ReadIsLeftToTheProgramUntilThetaChanges) {
  Program program(Noise(kValues, 1));
  std::vector<float> staging(2 * kUnitValues);
  const int64_t ticket = program.store().BeginRead(kLastTwo, staging);
  const std::optional<WorkPiece> piece = program.store().Take();
  ASSERT_TRUE(piece);
  EXPECT_TRUE(piece->before_change);
  EXPECT_EQ(piece->first, kUnitValues);
  EXPECT_EQ(std::ssize(piece->values), kValues - kUnitValues);
  std::ranges::fill(piece->values, 7.0f);
  ASSERT_TRUE(program.store().Done(piece->id, absl::OkStatus()).ok());
  EXPECT_TRUE(program.store().AwaitRead(ticket).ok());
  EXPECT_EQ(staging[0], 7);
}

TEST(ExternalStore, WorkThatCannotBeDoneFailsWhatWaitsForIt) {
  Program program(Noise(kValues, 1));
  std::vector<float> staging(2 * kUnitValues);
  const int64_t ticket = program.store().BeginRead(kLastTwo, staging);
  const std::optional<WorkPiece> piece = program.store().Take();
  ASSERT_TRUE(program.store().Done(piece->id, absl::InternalError("no such device")).ok());
  EXPECT_THAT(std::string(program.store().AwaitRead(ticket).message()), HasSubstr("no such device"));
  EXPECT_FALSE(program.store().Read(kLastTwo, staging).ok());  // the site is over
}

TEST(ExternalStore, EndLetsGoOfWhatWaitsOnceTheProgramHasDoneWhatItTook) {
  Program program(Noise(kValues, 1));
  std::vector<float> staging(2 * kUnitValues), other(kUnitValues);
  const int64_t taken = program.store().BeginRead(kLastTwo, staging);
  const int64_t waiting = program.store().BeginRead({{0, 0, 1}}, other);
  const std::optional<WorkPiece> piece = program.store().Take();
  program.store().End(absl::CancelledError("the site leaves"));
  EXPECT_TRUE(absl::IsCancelled(program.store().AwaitRead(waiting)));
  EXPECT_TRUE(program.store().has_taken_work());  // its memory is in use
  EXPECT_EQ(program.store().Take(), std::nullopt);
  ASSERT_TRUE(program.store().Done(piece->id, absl::OkStatus()).ok());
  EXPECT_TRUE(program.store().AwaitRead(taken).ok());
  EXPECT_FALSE(program.store().has_taken_work());
}

TEST(ExternalStore, TheDigestOfThetaIsTheSumOfItsTensors) {
  for (const DType dtype : {DType::kFloat32, DType::kBfloat16}) {
    Program program(Noise(kValues, 1), dtype);
    uint64_t digest = 0;
    ASSERT_TRUE(program.Digest(digest).ok());
    EXPECT_EQ(digest, core::ThetaDigest(/*seed=*/0, 0, program.theta()));
  }
}

// A shard of some columns: its values lie one after the other, and have places apart.
TEST(WorkPiece, AShardOfColumnsHasTheDigestsOfItsPlaces) {
  const std::vector<float> whole = Noise(6 * 10, 1);
  uint64_t sum = 0;
  for (const auto& [first, columns] : {std::pair(0, 4), std::pair(4, 6)}) {
    std::vector<float> shard;
    for (int row = 0; row < 6; ++row) {
      shard.insert(shard.end(), whole.begin() + row * 10 + first, whole.begin() + row * 10 + first + columns);
    }
    sum += DigestTheta(/*seed=*/3, DType::kFloat32, {.first = first, .rows = 6, .columns = columns, .stride = 10},
                       shard.data());
  }
  EXPECT_EQ(sum, core::ThetaDigest(/*seed=*/3, 0, whole));
}

// Moved in two parts, θ has the bits of one move: also where it is rounded stochastically.
TEST(WorkPiece, AMoveInPartsHasTheBitsOfTheWhole) {
  for (const DType dtype : {DType::kFloat32, DType::kBfloat16, DType::kFloat16}) {
    for (const WorkPiece::Kind kind : {WorkPiece::Kind::kWrite, WorkPiece::Kind::kMix, WorkPiece::Kind::kAdd}) {
      std::vector<float> by = Noise(10'000, 2);
      std::vector<std::byte> whole(by.size() * core::BytesOf(dtype));
      core::Store(dtype, Noise(by.size(), 1), whole.data());
      std::vector<std::byte> parts = whole;
      MoveTheta(kind, 0.3f, dtype, by, whole.data());
      MoveTheta(kind, 0.3f, dtype, std::span(by).first(4'321), parts.data());
      MoveTheta(kind, 0.3f, dtype, std::span(by).subspan(4'321), parts.data() + 4'321 * core::BytesOf(dtype));
      EXPECT_EQ(parts, whole);
    }
  }
}

TEST(ExternalStore, WorkThatWasNotTakenCannotBeDone) {
  Program program(Noise(kValues, 1));
  const absl::Status done = program.store().Done(42, absl::OkStatus());
  EXPECT_EQ(done.message(), "work_done: expected the id of work that was taken and is not done, got 42");
  float theta = 0;
  EXPECT_THAT(std::string(program.store().CarryOut(42, &theta).message()), HasSubstr("taken and is not done, got 42"));
}

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
