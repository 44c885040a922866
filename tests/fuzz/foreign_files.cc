#include "tests/fuzz/foreign_files.h"

#include <cstring>
#include <span>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "ctl/report_command.h"
#include "ctl/status_command.h"
#include "formats/hf_config.h"
#include "formats/model_directory.h"
#include "formats/run_advice.h"
#include "formats/run_yaml.h"
#include "formats/safetensors.h"
#include "formats/sha256.h"
#include "formats/token_file.h"
#include "formats/yaml_message.h"
#include "plan/pipeline_check.h"
#include "plan/pipeline_costs.h"
#include "plan/pipeline_file.h"
#include "plan/pipeline_generators.h"
#include "plan/pipeline_planner.h"
#include "plan/pipeline_svg.h"
#include "plan/pipeline_trace.h"
#include "plan/what_if.h"
#include "server/calls/authorizer.h"
#include "tests/formats/temporary_folder.h"
#include "worker/library/external_model.h"
#include "worker/site/checkpoint_json.h"

namespace causeway {
namespace {

constexpr int64_t kMostValues = 1 << 16;  // of a tensor, and steps of a schedule that is played

std::string Seed(const std::string& name) { return ReadAll(absl::StrCat(FUZZ_SEEDS, "/", name)); }

template <typename Value>
std::string BytesOf(const std::vector<Value>& values) {
  std::string bytes(values.size() * sizeof(Value), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

const TemporaryFolder& Folder() { return FolderOfProcess(); }

// ---- Models ----

const core::Manifest& TwoTensors() {
  static const core::Manifest manifest = {{.name = "w", .shape = {2, 3}}, {.name = "b", .shape = {4}}};
  return manifest;
}

std::string WriteTwoTensors(const std::string& name) {
  static const std::vector<float> w(6, 0.5f), b(4, 0.25f);
  const std::string path = Folder() / name;
  CHECK(formats::WriteSafetensors(path, std::vector<formats::TensorData>{{"w", {2, 3}, w}, {"b", {4}, b}},
                                  {{"format", "pt"}}, formats::ValueType::kFloat32)
            .ok());
  return path;
}

absl::Status ReadHfConfig(const std::string& bytes) {
  const std::string path = Folder().Write("config.json", bytes);
  ASSIGN_OR_RETURN(const core::LlamaConfig llama, formats::ReadHfConfig(path));
  formats::HfConfigDifference(llama, {});
  return absl::OkStatus();
}

absl::Status ReadSafetensors(const std::string& bytes) {
  const std::string path = Folder().Write("model.safetensors", bytes);
  ASSIGN_OR_RETURN(const formats::SafetensorsFile file, formats::SafetensorsFile::Open(path));
  for (const formats::SafetensorsFile::Entry& entry : file.tensors()) {
    int64_t count = 1;
    for (const int64_t extent : entry.shape) count = std::min(count * extent, kMostValues);
    std::vector<float> values(static_cast<size_t>(count));
    RETURN_IF_ERROR(file.Read(entry.name, values));
  }
  return absl::OkStatus();
}

absl::Status ReadModelIndex(const std::string& bytes) {
  static const std::string kFolder = [] {
    const std::string folder = Folder() / "model";
    std::filesystem::create_directory(folder);
    std::filesystem::rename(WriteTwoTensors("a.safetensors"), folder + "/a.safetensors");
    return folder;
  }();
  Folder().Write("model/model.safetensors.index.json", bytes);
  std::vector<float> w(6), b(4);
  const std::vector<std::span<float>> tensors = {w, b};
  return formats::ReadModelDirectory(kFolder, TwoTensors(), tensors, TwoTensors());
}

absl::Status ReadSums(const std::string& bytes) {
  static const std::string kFolder = [] {
    const std::string folder = Folder() / "sums";
    std::filesystem::create_directory(folder);
    Folder().Write("sums/a.bin", "abc");
    return folder;
  }();
  Folder().Write("sums/SHA256SUMS", bytes);
  return formats::CheckSha256Sum(kFolder, "a.bin");
}

// ---- Data ----

std::function<absl::Status(const std::string&)> TokensOf(const std::string& name, int64_t vocab_size) {
  return [=](const std::string& bytes) -> absl::Status {
    const std::string path = Folder().Write(name, bytes);
    ASSIGN_OR_RETURN(const formats::TokenFile file, formats::TokenFile::Open(path, {.vocab_size = vocab_size}));
    file.Fingerprint();
    return absl::OkStatus();
  };
}

std::string NumpyFile() {
  std::string header = "{'descr': '<u2', 'fortran_order': False, 'shape': (64,), }";
  header.resize(118 - 1, ' ');
  header += '\n';
  return absl::StrCat(std::string("\x93NUMPY\x01\x00", 8), BytesOf(std::vector<uint16_t>{118}), header,
                      BytesOf(std::vector<uint16_t>(64, 7)));
}

std::string LlmcFile() {
  std::vector<int32_t> header(256);
  header[0] = 20240520, header[1] = 1, header[2] = 64;
  return BytesOf(header) + BytesOf(std::vector<uint16_t>(64, 7));
}

// ---- Plans ----

plan::PipelineSchedule TwoDevices() { return *plan::Generate("1f1b", {.devices = 2, .micro_batches = 1}); }

plan::PipelineCosts SomeCosts() { return *plan::ReadPipelineCosts(Seed("costs.json"), "costs.json"); }

int64_t Steps(const plan::PipelineSchedule& schedule) {
  int64_t steps = int64_t{schedule.stages} * schedule.micro_batches;
  for (const auto& list : schedule.lists) steps += std::ssize(list);
  return steps;
}

absl::Status ReadCosts(const std::string& bytes) {
  ASSIGN_OR_RETURN(const plan::PipelineCosts costs, plan::ReadPipelineCosts(bytes, "costs.json"));
  const plan::PlannerInput input = {.devices = 2, .micro_batches = 1, .costs = costs, .bytes_per_s = 1e9};
  ASSIGN_OR_RETURN(const auto split, plan::SplitLayers(costs, 2));
  ASSIGN_OR_RETURN(const plan::PlayedPipeline played, Play(TwoDevices(), PlannedTimes(input, split)));
  CHECK(played.makespan >= 0);
  return absl::OkStatus();
}

absl::Status ReadSchedule(const std::string& bytes) {
  ASSIGN_OR_RETURN(plan::PipelineFile file, plan::ParsePipelineFile(bytes, "schedule.txt"));
  if (Steps(file.schedule) > kMostValues) return absl::OkStatus();
  RETURN_IF_ERROR(CheckPipeline(file.schedule));
  plan::WritePipelineFile(file);
  plan::TorchCsv(file.schedule).IgnoreError();
  ReceiveSlots(file.schedule);
  const plan::PlannerInput input = {.devices = file.schedule.devices, .costs = SomeCosts()};
  if (file.split.empty()) {
    ASSIGN_OR_RETURN(file.split, plan::SplitLayers(input.costs, file.schedule.stages));
  }
  ASSIGN_OR_RETURN(const plan::PlayedPipeline played, Play(file.schedule, PlannedTimes(input, file.split)));
  PipelineSvg(file.schedule, played, "title");
  plan::ReadPipelineTrace(Seed("pipeline_trace.json"), "trace.json", file.schedule).IgnoreError();
  return absl::OkStatus();
}

absl::Status ReadPipelineTrace(const std::string& bytes) {
  plan::PipelineSchedule schedule = TwoDevices();
  const auto measured = plan::ReadPipelineTrace(bytes, "trace.json", schedule);
  if (measured.ok()) {
    ASSIGN_OR_RETURN(const plan::PlayedPipeline played, Play(schedule, UnitTimes(schedule, 1000)));
    PipelineSvg(schedule, played, "title", &*measured);
  }
  schedule.lists[0].clear();  // a device with nothing to do
  plan::ReadPipelineTrace(bytes, "trace.json", schedule).IgnoreError();
  return measured.status();
}

absl::Status ReadWorkTrace(const std::string& bytes) {
  ASSIGN_OR_RETURN(const plan::Work work, plan::ReadWork(bytes, "trace.json"));
  if (work.seconds_per_step <= 0) return absl::OkStatus();
  plan::GainsOfEach(work, 2);
  return Simulate(work, {}).status();
}

// ---- Configs, checkpoints, statuses ----

absl::Status ReadRunYaml(const std::string& bytes) {
  ASSIGN_OR_RETURN(const core::RunConfig config, formats::ParseRunYaml(bytes, "run.yaml"));
  formats::RunAdvice(config);
  formats::RunConfigJson(config);
  return absl::OkStatus();
}

std::string Checkpoint() {
  worker::SiteCheckpoint checkpoint;
  checkpoint.facts = {.lineage = "a", .step = 20, .trained = {.tokens = 4000, .steps = 20}, .sites = {"eu", "us"}};
  checkpoint.facts.fragments.resize(2);
  checkpoint.facts.fragments[0].sent = worker::SentFacts{.base = 1};
  checkpoint.arrays.resize(2);
  return CheckpointToJson({.run = "run", .site = "eu", .session = "s", .lineage = "a"}, checkpoint);
}

absl::Status ReadModelDescription(const std::string& bytes) {
  core::RunConfig config;
  config.model_kind = core::ModelKind::kExternal;
  return worker::ParseExternalModel(bytes, config).status();
}

absl::Status ReadStatus(const std::string& bytes) {
  ASSIGN_OR_RETURN(const std::string text, ctl::StatusText(bytes));
  return ctl::ReportHtml({.status_json = bytes, .sample = bytes.substr(0, 200)}).status();
}

}  // namespace

std::vector<ForeignFile> ForeignFiles() {
  const std::string two_tensors = ReadAll(WriteTwoTensors("model.safetensors"));
  return {
      {"config.json", {Seed("config.json"), formats::HfConfigJson({})}, ReadHfConfig},
      {"safetensors", {two_tensors}, ReadSafetensors},
      {"index.json", {Seed("index.json")}, ReadModelIndex},
      {"SHA256SUMS", {Seed("SHA256SUMS")}, ReadSums},
      {"jsonl", {Seed("texts.jsonl")}, TokensOf("texts.jsonl", 256)},
      {"npy", {NumpyFile()}, TokensOf("tokens.npy", 256)},
      {"bin", {LlmcFile(), BytesOf(std::vector<uint16_t>(64, 7))}, TokensOf("tokens.bin", 256)},
      {"txt", {"Some text.\n"}, TokensOf("text.txt", 256)},
      {"costs", {Seed("costs.json")}, ReadCosts},
      {"schedule", {plan::WritePipelineFile({.schedule = TwoDevices()}), Seed("schedule.txt")}, ReadSchedule},
      {"pipeline_trace", {Seed("pipeline_trace.json")}, ReadPipelineTrace},
      {"work_trace", {Seed("work_trace.json")}, ReadWorkTrace},
      {"run.yaml", {Seed("run.yaml"), ReadAll(DEPLOY_RUN_YAML)}, ReadRunYaml},
      {"levels.yaml",
       {Seed("levels.yaml")},
       [](const std::string& bytes) { return formats::ParseLevelsYaml(bytes, "levels.yaml").status(); }},
      {"checkpoint",
       {Checkpoint()},
       [](const std::string& bytes) { return worker::CheckpointFromJson(bytes).status(); }},
      {"model_description", {Seed("model_description.json")}, ReadModelDescription},
      {"status", {Seed("status.json")}, ReadStatus},
      {"site_tokens",
       {Seed("site_tokens")},
       [](const std::string& bytes) { return server::SiteTokens::Parse(bytes, "site_tokens").status(); }},
      {"revoked",
       {"0a1b2c # eu\n"},
       [](const std::string& bytes) { return server::ParseRevoked(bytes, "revoked").status(); }},
  };
}

}  // namespace causeway
