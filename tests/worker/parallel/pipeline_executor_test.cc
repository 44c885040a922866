#include "worker/parallel/pipeline_executor.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "core/check.h"
#include "core/model_manifest.h"
#include "core/random.h"
#include "plan/pipeline_check.h"
#include "plan/pipeline_generators.h"
#include "plan/pipeline_schedule.h"
#include "plan/pipeline_time.h"
#include "tests/worker/model/test_values.h"
#include "tests/worker/ranks/fake_nccl_ranks.h"
#include "tests/worker/ranks/gloo_ranks.h"
#include "worker/parallel/llama_stages.h"
#include "worker/parallel/pipeline_place.h"
#include "worker/parallel/pipeline_program.h"

namespace causeway::worker {
namespace {

using ::testing::HasSubstr;

// A valid schedule drawn at random: devices take, in an order that the seed decides, any operation that may come next.

inline plan::PipelineSchedule RandomSchedule(uint64_t seed) {
  using Kind = plan::OperationKind;
  uint64_t draws = 0;
  const auto below = [&](int n) {
    return static_cast<int>(core::HashCombine(seed, draws++) % static_cast<uint64_t>(n));
  };
  plan::PipelineSchedule schedule{.devices = 2 + below(3), .micro_batches = 1 + below(5)};
  schedule.stages = schedule.devices * (1 + below(2));
  std::vector<int>& place = schedule.place.emplace_back();
  for (int s = 0; s < schedule.stages; ++s) place.push_back(s < schedule.devices ? s : below(schedule.devices));
  for (size_t s = place.size(); s > 1; --s)
    std::swap(place[s - 1], place[static_cast<size_t>(below(static_cast<int>(s)))]);
  schedule.lists.resize(static_cast<size_t>(schedule.devices));
  struct Progress {
    bool split = false;
    std::vector<bool> forward, input;
    int weights = 0;  // by micro-batch, in order
  };
  std::vector<Progress> stages(static_cast<size_t>(schedule.stages));
  const auto n = static_cast<size_t>(schedule.micro_batches);
  for (Progress& stage : stages) stage = {below(2) == 0, std::vector<bool>(n), std::vector<bool>(n)};
  while (true) {
    std::vector<plan::Operation> ready;
    for (int s = 0; s < schedule.stages; ++s) {
      const Progress& stage = stages[static_cast<size_t>(s)];
      for (size_t m = 0; m < n; ++m) {
        const auto add = [&](Kind kind) { ready.push_back({kind, 0, s, static_cast<int>(m)}); };
        const bool above = s + 1 == schedule.stages || stages[static_cast<size_t>(s) + 1].input[m];
        if (!stage.forward[m] && (s == 0 || stages[static_cast<size_t>(s) - 1].forward[m])) add(Kind::kForward);
        if (stage.forward[m] && !stage.input[m] && above && (stage.split || stage.weights == static_cast<int>(m))) {
          add(stage.split ? Kind::kInput : Kind::kBackward);
        }
        if (stage.split && stage.input[m] && stage.weights == static_cast<int>(m)) add(Kind::kWeight);
      }
    }
    if (ready.empty()) break;
    const plan::Operation next = ready[static_cast<size_t>(below(static_cast<int>(ready.size())))];
    Progress& stage = stages[static_cast<size_t>(next.stage)];
    const auto m = static_cast<size_t>(next.micro_batch);
    if (next.kind == Kind::kForward) stage.forward[m] = true;
    if (next.kind == Kind::kInput || next.kind == Kind::kBackward) stage.input[m] = true;
    if (next.kind == Kind::kWeight || next.kind == Kind::kBackward) ++stage.weights;
    schedule.lists[static_cast<size_t>(place[static_cast<size_t>(next.stage)])].push_back({next});
  }
  CHECK(plan::CheckPipeline(schedule).ok());
  return schedule;
}

constexpr int64_t kSequence = 4;

core::LlamaConfig ConfigOf(int layers) {
  core::LlamaConfig config = TinyRun().llama;
  config.num_hidden_layers = layers;
  return config;
}

Batch BatchOf(const core::LlamaConfig& config, int micro_batches) {
  Batch batch;
  for (int64_t i = 0; i < micro_batches * kSequence; ++i) {
    batch.tokens.push_back(static_cast<int32_t>((7 * i + 3) % config.vocab_size));
    batch.targets.push_back(static_cast<int32_t>((5 * i + 1) % config.vocab_size));
  }
  return batch;
}

// Where an operation may take longer than it did before, so that every order of events is met.
class Delayed final : public StageRunner {
 public:
  Delayed(StageRunner& runner, uint64_t seed) : runner_(runner), seed_(seed) {}

  void Forward(const plan::Operation& operation, std::span<const float> input, std::span<float> output) override {
    Delay();
    runner_.Forward(operation, input, output);
  }
  void Backward(const plan::Operation& operation, std::span<const float> doutput, std::span<float> dinput) override {
    Delay();
    runner_.Backward(operation, doutput, dinput);
  }
  void BackwardInput(const plan::Operation& operation, std::span<const float> doutput,
                     std::span<float> dinput) override {
    Delay();
    runner_.BackwardInput(operation, doutput, dinput);
  }
  void BackwardWeight(const plan::Operation& operation) override {
    Delay();
    runner_.BackwardWeight(operation);
  }

 private:
  void Delay() {
    const uint64_t draw = core::HashCombine(seed_, operations_++);
    if (draw % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(draw / 4 % 300));
  }

  StageRunner& runner_;
  const uint64_t seed_;
  uint64_t operations_ = 0;
};

// All tensors, on every device.
class AllTensors final : public StageTensors {
 public:
  AllTensors(const Tensors& weights, std::vector<std::vector<float>>& gradients) {
    weights_ = weights;
    gradients_.assign(gradients.begin(), gradients.end());
  }
};

struct Ran {
  std::vector<std::vector<std::vector<float>>> gradients;  // of each device, as LlamaStage indexes them
  std::vector<int64_t> activations;                        // layers' buffers of each device
  int64_t messages = 0, bytes = 0;
};

// One step of the schedule over these ranks, each stage of which has as many layers as the others.
Ran RunOn(std::vector<RankUnderTest> ranks, const plan::PipelineSchedule& schedule, const core::LlamaConfig& config,
          const Tensors& weights, uint64_t seed) {
  plan::PipelineFile file{.schedule = schedule,
                          .split = EvenSplit(static_cast<int>(config.num_hidden_layers), schedule.stages)};
  const PipelinePrograms programs = *CompilePipeline(schedule);
  const auto devices = static_cast<size_t>(schedule.devices);
  Ran ran{.gradients = std::vector<std::vector<std::vector<float>>>(devices),
          .activations = std::vector<int64_t>(devices)};
  std::vector<int64_t> messages(devices), bytes(devices);
  const std::vector<absl::Status> statuses = OnRanks(schedule.devices, [&](int rank) -> absl::Status {
    const auto at = static_cast<size_t>(rank);
    for (const std::span<const float> tensor : weights) ran.gradients[at].emplace_back(tensor.size());
    ran.gradients[at].emplace_back(weights[0].size());
    AllTensors tensors(weights, ran.gradients[at]);
    LlamaStages stages({.config = config, .file = file, .device = rank, .batch_rows = 1, .sequence = kSequence},
                       tensors);
    ASSIGN_OR_RETURN(const auto links, PipelineLinks::Open({.values = ranks[at].collectives.get(), .timeout_s = 60},
                                                           programs, 1, stages.message_values()));
    Delayed delayed(stages, core::HashCombine(seed, at));
    const Batch batch = BatchOf(config, schedule.micro_batches);
    std::vector<PreparedBatch> parts;
    for (int i = 0; i < schedule.micro_batches; ++i) parts.emplace_back(Part(batch, i, schedule.micro_batches));
    RETURN_IF_ERROR(stages.BeginStep(std::move(parts), 1));
    std::vector<PipelineSpan> spans;
    RETURN_IF_ERROR(RunPipelineStep(programs.devices[at], *links, tensors, delayed, spans));
    ran.activations[at] = stages.activations().size();
    messages[at] = links->sent_messages();
    bytes[at] = links->sent_bytes();
    return absl::OkStatus();
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
  for (size_t d = 0; d < devices; ++d) {
    ran.messages += messages[d];
    ran.bytes += bytes[d];
  }
  return ran;
}

TensorValues WeightsOf(const core::LlamaConfig& config) {
  const core::Manifest manifest = core::LlamaManifest(config);
  TensorValues weights(manifest);
  for (int i = 0; i < weights.size(); ++i) {
    std::ranges::copy(RandomValues(core::HashCombine(1, static_cast<uint64_t>(i)), weights[i].size(), 0.2),
                      weights[i].begin());
  }
  return weights;
}

// Every tensor's gradient, as one device that holds all sums it.
std::vector<std::vector<float>> SerialGradients(const core::LlamaConfig& config, int micro_batches,
                                                const Tensors& weights) {
  plan::PipelineSchedule alone = *plan::Generate("gpipe", {.devices = 1, .micro_batches = micro_batches});
  return RunOn(OverThreads(1), alone, config, weights, 1).gradients[0];
}

void ExpectSerialBits(const plan::PipelineSchedule& schedule, const core::LlamaConfig& config, const Ran& ran,
                      const std::vector<std::vector<float>>& serial, uint64_t seed) {
  const PipelinePlaces places = PlacesOf(
      {.schedule = schedule, .split = EvenSplit(static_cast<int>(config.num_hidden_layers), schedule.stages)}, config);
  for (size_t s = 0; s < places.stages.size(); ++s) {
    for (const int gradient : places.stages[s]) {
      const auto device = static_cast<size_t>(schedule.place[0][s]);
      ASSERT_EQ(ran.gradients[device][static_cast<size_t>(gradient)], serial[static_cast<size_t>(gradient)])
          << "seed " << seed << ", gradient " << gradient;
    }
  }
}

// CAUSEWAY_SCHEDULES: how many.
TEST(PipelineExecutor, RunsRandomSchedulesWithRandomDelaysToTheSerialBits) {
  int schedules = 200;
  const char* const given = std::getenv("CAUSEWAY_SCHEDULES");
  ASSERT_TRUE(given == nullptr || absl::SimpleAtoi(given, &schedules));
  std::map<std::pair<int, int>, std::vector<std::vector<float>>> serial;  // by layers and micro-batches
  for (int seed = 1; seed <= schedules; ++seed) {
    const plan::PipelineSchedule schedule = RandomSchedule(static_cast<uint64_t>(seed));
    core::LlamaConfig config = ConfigOf(schedule.stages);
    const TensorValues weights = WeightsOf(config);
    auto& expected = serial[{schedule.stages, schedule.micro_batches}];
    if (expected.empty()) expected = SerialGradients(config, schedule.micro_batches, weights.View());
    const Ran ran = RunOn(OverThreads(schedule.devices), schedule, config, weights.View(), static_cast<uint64_t>(seed));
    ExpectSerialBits(schedule, config, ran, expected, static_cast<uint64_t>(seed));
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(PipelineExecutor, OverGlooAndNcclRunsRandomSchedulesToTheSerialBits) {
  for (const MakeRanks& ranks_of : {MakeRanks(OverGloo), MakeRanks(OverNccl)}) {
    for (const uint64_t seed : {1, 2, 3}) {
      const plan::PipelineSchedule schedule = RandomSchedule(seed);
      const core::LlamaConfig config = ConfigOf(schedule.stages);
      const TensorValues weights = WeightsOf(config);
      const Ran ran = RunOn(ranks_of(schedule.devices), schedule, config, weights.View(), seed);
      ExpectSerialBits(schedule, config, ran, SerialGradients(config, schedule.micro_batches, weights.View()), seed);
    }
  }
}

TEST(PipelineExecutor, HoldsAsManyActivationsAndSendsAsManyBytesAsAreSimulated) {
  for (const std::string& name : plan::GeneratorNames()) {
    const auto schedule = plan::Generate(name, {.devices = 4, .micro_batches = 8});
    ASSERT_TRUE(schedule.ok());
    const core::LlamaConfig config = ConfigOf(schedule->stages);
    const TensorValues weights = WeightsOf(config);
    const Ran ran = RunOn(OverThreads(4), *schedule, config, weights.View(), 1);
    const auto played = plan::Play(*schedule, plan::UnitTimes(*schedule, 1'000'000));
    ASSERT_TRUE(played.ok());
    for (size_t d = 0; d < 4; ++d) EXPECT_EQ(ran.activations[d], played->peak_chunks[d]) << name << ", device " << d;
    EXPECT_EQ(ran.messages, played->messages) << name;
    EXPECT_EQ(ran.bytes, ran.messages * kSequence * config.hidden_size * 4) << name;
  }
}

PipelinePrograms ProgramsOf(const std::string& name, int devices, int micro_batches) {
  const auto schedule = plan::Generate(name, {.devices = devices, .micro_batches = micro_batches});
  EXPECT_TRUE(schedule.ok()) << name << ": " << schedule.status();
  const auto programs = CompilePipeline(*schedule);
  EXPECT_TRUE(programs.ok()) << name << ": " << programs.status();
  return *programs;
}

int64_t MessagesOf(const PipelinePrograms& programs) {
  int64_t all = 0;
  for (const PipelineProgram& program : programs.devices) {
    for (const auto& [to, count] : program.given) all += count;
  }
  return all;
}

TEST(PipelineProgram, HasAsManyMessagesAsTheFormulaSays) {
  for (const int d : {2, 4}) {
    const int n = 4 * d;
    const auto line = [&](int chunks) { return 2 * n * (chunks * d - 1); };
    for (const std::string name : {"gpipe", "1f1b", "zb_h1", "dualpipe"}) {
      EXPECT_EQ(MessagesOf(ProgramsOf(name, d, n)), line(1)) << name << d;
    }
    EXPECT_EQ(MessagesOf(ProgramsOf("interleaved", d, n)), line(2));
    EXPECT_EQ(MessagesOf(ProgramsOf("zeropp", d, n)), line(2));
    EXPECT_EQ(MessagesOf(ProgramsOf("zb_v", d, n)), 2 * line(1));  // where the V turns it stays on the device
  }
}

TEST(PipelineProgram, EveryMessageThatIsGivenIsTaken) {
  for (const std::string& name : plan::GeneratorNames()) {
    const PipelinePrograms programs = ProgramsOf(name, 4, 8);
    for (int from = 0; from < 4; ++from) {
      for (const auto& [to, count] : programs.devices[static_cast<size_t>(from)].given) {
        EXPECT_EQ(programs.devices[static_cast<size_t>(to)].received.at(from), count) << name;
      }
    }
  }
}

TEST(PipelineProgram, StopsWithARendezvousUnlessAllForwardsComeFirst) {
  for (const std::string& name : plan::GeneratorNames()) {
    const absl::Status blocking = Rehearse(ProgramsOf(name, 4, 8), 8, SendKind::kRendezvous);
    if (name == "gpipe") {
      EXPECT_TRUE(blocking.ok()) << blocking;
      continue;
    }
    EXPECT_TRUE(absl::IsInvalidArgument(blocking)) << name;
    EXPECT_THAT(std::string(blocking.message()), HasSubstr("schedule: device 0 waits at ")) << name;
    EXPECT_THAT(std::string(blocking.message()), HasSubstr(" to receive")) << name;
  }
}

TEST(PipelineProgram, WithFewerBuffersThanItNeedsStopsWhereALaterMessageHoldsThem) {
  const PipelinePrograms programs = ProgramsOf("zb_v", 4, 8);
  EXPECT_EQ(programs.slots, 2);
  EXPECT_TRUE(Rehearse(programs, 2, SendKind::kAsynchronous).ok());
  const absl::Status stopped = Rehearse(programs, 1, SendKind::kAsynchronous);
  EXPECT_TRUE(absl::IsInvalidArgument(stopped));
  EXPECT_THAT(std::string(stopped.message()), HasSubstr("for a slot from device "));
}

TEST(PipelineProgram, NeedsTheBuffersThatTheCheckerSays) {
  for (const std::string& name : plan::GeneratorNames()) {
    const auto schedule = plan::Generate(name, {.devices = 4, .micro_batches = 8});
    const auto programs = CompilePipeline(*schedule);
    ASSERT_TRUE(programs.ok());
    EXPECT_EQ(programs->slots, plan::ReceiveSlots(*schedule));
    EXPECT_EQ(programs->slots, name == "bitpipe_looped" ? 3 : name == "zb_v" || name == "chimera" ? 2 : 1) << name;
  }
}

}  // namespace
}  // namespace causeway::worker
