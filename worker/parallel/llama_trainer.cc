#include "worker/parallel/llama_trainer.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/check.h"
#include "core/clock.h"
#include "core/random.h"
#include "formats/levels_yaml.h"
#include "formats/text_file.h"
#include "worker/model/machine_speeds.h"
#include "worker/optimizer/trainer_file.h"
#include "worker/parallel/held_tensors.h"
#include "worker/parallel/level_shards.h"
#include "worker/parallel/stage_shards.h"
#include "worker/parallel/state_gather.h"
#include "worker/parallel/traced_stages.h"

namespace causeway::worker {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{64} << 20;
constexpr double kUnknownLink = 1e9;  // bytes a second, if the site has no file of levels

// ---- Pipelines ----

// Checks that every rank's digest of the file equals that of rank 0.
absl::Status CheckSameFile(const TrainerRanks& ranks, const std::string& text, const std::string& path) {
  if (ranks.world() == 1) return absl::OkStatus();
  const uint64_t mine = core::HashCombine(text.size(), text);
  std::vector<uint64_t> all(static_cast<size_t>(ranks.world()));
  const Collectives::Ticket ticket =
      ranks.values->AllGather(BytesOf(std::span<const uint64_t>(&mine, 1)), BytesOf(std::span(all)));
  RETURN_IF_ERROR(ranks.values->Await(ticket, ranks.timeout()));
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    return absl::InvalidArgumentError(absl::StrCat("--pipeline: ", path,
                                                   ": expected the same file on all ranks, got another on ",
                                                   ranks.values->NameOf(static_cast<int>(rank))));
  }
  return absl::OkStatus();
}

absl::StatusOr<plan::PipelineFile> ReadSchedule(const core::RunConfig& config, const TrainerFiles& files) {
  const std::string& path = files.pipeline_path;
  ASSIGN_OR_RETURN(const std::string text, formats::ReadTextFile(path, kMaxFileBytes));
  ASSIGN_OR_RETURN(plan::PipelineFile parsed, plan::ParsePipelineFile(text, path));
  ASSIGN_OR_RETURN(plan::PipelineFile file, FitPipeline(std::move(parsed), path, config, files.ranks.world()));
  RETURN_IF_ERROR(CheckSameFile(files.ranks, text, path));
  return file;
}

// ---- Partitions ----

struct Partition {
  core::LinkLevels levels;
  PartitionLevels at;
};

absl::StatusOr<core::LinkLevels> ReadLevels(const std::string& path, int world) {
  if (path.empty()) return core::LinkLevels{.site = {{.name = "site", .of = world}}, .wan = {}};
  ASSIGN_OR_RETURN(core::LinkLevels levels, formats::ReadLevelsYaml(path));
  if (levels.ranks() == world) return levels;
  return absl::InvalidArgumentError(
      absl::StrCat("--levels: ", path, ": expected levels of the site's ", world, " ranks, got ", levels.ranks()));
}

// None: nothing is divided.
absl::StatusOr<std::optional<Partition>> ReadPartition(const core::RunConfig& config, const TrainerFiles& files) {
  if (!config.inner.partition || !files.pipeline_path.empty() || files.ranks.values == nullptr) return std::nullopt;
  if (config.inner.optimizer == core::InnerOptimizerKind::kOnebitAdam) {
    return absl::InvalidArgumentError(
        "inner.partition: expected none with inner.optimizer: onebit_adam, which averages momenta of whole models");
  }
  Partition partition;
  ASSIGN_OR_RETURN(partition.levels, ReadLevels(files.levels_path, files.ranks.world()));
  partition.at = ResolvePartition(*config.inner.partition, partition.levels);
  return partition;
}

void Log(const Partition& partition) {
  spdlog::info("partition: weights over {}, gradients over {}, optimizer over {}; sums go up {}",
               plan::LevelName(partition.levels, partition.at.weights),
               plan::LevelName(partition.levels, partition.at.gradients),
               plan::LevelName(partition.levels, partition.at.optimizer),
               absl::StrJoin(partition.levels.site, ", ", [](std::string* out, const core::LinkLevel& level) {
                 absl::StrAppend(out, level.name, " of ", level.of);
               }));
}

// ---- All ----

absl::StatusOr<plan::PipelineFile> ProgramOf(const core::RunConfig& config, const TrainerFiles& files,
                                             const std::optional<Partition>& partition) {
  if (!files.pipeline_path.empty()) return ReadSchedule(config, files);
  if (partition) return PartitionProgram(config.llama, config.inner.micro_batches, files.ranks.world());
  return OneStageProgram(config.llama, config.inner.micro_batches, files.ranks.world());
}

absl::StatusOr<std::unique_ptr<ShardedTensors>> TensorsOf(const core::RunConfig& config, const TrainerRanks& ranks,
                                                          const plan::PipelineFile& file,
                                                          const std::optional<Partition>& partition) {
  if (partition) {
    Log(*partition);
    return LevelShards::Open(config, partition->levels, partition->at, ranks);
  }
  PipelinePlaces places = PlacesOf(file, config.llama);
  return file.shards ? StageShards::Open(file, std::move(places), ranks)
                     : HeldTensors::Open(file, std::move(places), ranks);
}

// The rank holds the whole state, and is the one that sends it.
bool HoldsAll(const ShardedTensors& tensors, int rank) {
  const std::vector<Piece> pieces = tensors.own_pieces(rank);
  return pieces.size() == tensors.manifest().size() && std::ranges::all_of(pieces, [&](const Piece& piece) {
           return piece.rank == rank &&
                  piece.count == tensors.manifest()[static_cast<size_t>(piece.tensor)].NumValues();
         });
}

}  // namespace

absl::StatusOr<std::unique_ptr<Trainer>> LlamaTrainer::Make(const core::RunConfig& config, const core::SiteId& site,
                                                            TrainerFiles files, const MakeStages& make_stages) {
  ASSIGN_OR_RETURN(const std::optional<Partition> partition, ReadPartition(config, files));
  ASSIGN_OR_RETURN(const plan::PipelineFile file, ProgramOf(config, files, partition));
  ASSIGN_OR_RETURN(PipelinePrograms programs, CompilePipeline(file.schedule));
  files.ranks.devices = file.schedule.devices;
  RETURN_IF_ERROR(CheckRows(config, site, files.ranks.data_world()));
  ASSIGN_OR_RETURN(LlamaData data, LlamaData::Open(config, site, files));
  ASSIGN_OR_RETURN(std::unique_ptr<ShardedTensors> tensors, TensorsOf(config, files.ranks, file, partition));
  RETURN_IF_ERROR(tensors->Initialize(
      [&](const core::Manifest& manifest, TensorValues& values) { return data.Initialize(manifest, values); }));
  std::unique_ptr<LlamaTrainer> trainer(
      new LlamaTrainer(config, files, std::move(programs), std::move(tensors), std::move(data)));
  RETURN_IF_ERROR(trainer->Open(config, file, files, make_stages));
  return trainer;
}

LlamaTrainer::LlamaTrainer(const core::RunConfig& config, const TrainerFiles& files, PipelinePrograms programs,
                           std::unique_ptr<ShardedTensors> tensors, LlamaData data)
    : ranks_(files.ranks),
      programs_(std::move(programs)),
      data_(std::move(data)),
      tensors_(std::move(tensors)),
      store_(tensors_->MakeStore(&bus())),
      update_(config, *tensors_, bus(), files.calibration_path, files.ranks) {}

absl::Status LlamaTrainer::Open(const core::RunConfig& config, const plan::PipelineFile& file,
                                const TrainerFiles& files, const MakeStages& make_stages) {
  StagesRequest request{.config = config.llama,
                        .file = file,
                        .device = ranks_.rank() / file.width,
                        .batch_rows = data_.rows() / file.schedule.micro_batches,
                        .sequence = config.sequence_length(),
                        .tensors = *tensors_};
  if (file.schedule.stages == 1) request.on_final = [this](int tensor) { update_.Final(tensor); };
  ASSIGN_OR_RETURN(stages_, make_stages(request));
  ASSIGN_OR_RETURN(links_, PipelineLinks::Open(ranks_, programs_, file.width, stages_->message_values()));
  if (files.pipeline_path.empty()) return OpenWorkTrace(config, file, files);
  spdlog::info("pipeline: device {} of {}, {} of {} tensors, {} micro-batches, {} receive buffers for a sender",
               request.device, file.schedule.devices, tensors_->own().manifest.size(), manifest().size(),
               file.schedule.micro_batches, programs_.slots);
  ASSIGN_OR_RETURN(trace_, PipelineTrace::Open(files.trace_path, ranks_, programs_, file.width));
  return absl::OkStatus();
}

absl::Status LlamaTrainer::OpenWorkTrace(const core::RunConfig& config, const plan::PipelineFile& file,
                                         const TrainerFiles& files) {
  LevelShards* const shards = dynamic_cast<LevelShards*>(tensors_.get());
  if (shards == nullptr || files.trace_path.empty() || ranks_.rank() > 0) return absl::OkStatus();
  const MachineSpeeds machine = MeasureMachine();
  Amounts speeds{{"cpu", machine.flops}, {"l2", machine.l2}, {"l3", machine.l3}, {"dram", machine.dram}};
  std::vector<std::string> names;
  for (const core::LinkLevel& level : shards->link_levels().site) {
    speeds.emplace_back("link " + level.name, level.bytes_per_s > 0 ? level.bytes_per_s : kUnknownLink);
    names.push_back(level.name);
  }
  ASSIGN_OR_RETURN(work_trace_, WorkTrace::Open(files.trace_path, speeds));
  shards->groups().Trace(work_trace_.get(), names);
  update_.Trace(work_trace_.get());
  const int64_t rows = data_.rows() / file.schedule.micro_batches * config.sequence_length();
  stages_ = std::make_unique<TracedStages>(std::move(stages_), shards->stage_values(), rows, work_trace_.get());
  return absl::OkStatus();
}

absl::StatusOr<StepResult> LlamaTrainer::Step(core::Step t) {
  ASSIGN_OR_RETURN(const Batch batch, data_.BatchAt(t));
  tensors_->ClearGradients();
  update_.Begin();
  RETURN_IF_ERROR(stages_->BeginStep(batch, update_.scale()));
  if (trace_ != nullptr) RETURN_IF_ERROR(RankFailure(trace_->Begin()));
  std::vector<PipelineSpan> spans;
  RETURN_IF_ERROR(RankFailure(RunPipelineStep(program(), *links_, *tensors_, *stages_, spans)));
  RETURN_IF_ERROR(stages_->EndStep());
  if (trace_ != nullptr) RETURN_IF_ERROR(RankFailure(trace_->Write(t, spans)));
  RankStep mine{.loss = stages_->loss() * ranks_.devices,  // only from the last stages, averaged over the ranks
                .tokens = ranks_.rank() < ranks_.data_world() ? std::ssize(batch.tokens) : 0};
  for (const PipelineSpan& span : spans) {
    if (IsCompute(span.operation.kind)) mine.compute_s += span.end_s - span.begin_s;
  }
  ASSIGN_OR_RETURN(const std::vector<RankStep> steps, update_.Finish(t, mine));
  if (work_trace_ != nullptr) work_trace_->EndStep(t);
  const int64_t sent = links_->sent_bytes() + tensors_->sent_bytes();
  step_bytes_ = static_cast<double>(sent - std::exchange(sent_bytes_, sent));
  return ResultOf(steps);
}

core::RankProgress LlamaTrainer::rank_progress() const {
  core::RankProgress progress = update_.rank_progress();
  progress.step_bytes += step_bytes_;
  progress.levels = tensors_->levels();
  return progress;
}

int64_t LlamaTrainer::state_bytes() const {
  return tensors_->bytes() + 2 * static_cast<int64_t>(tensors_->own().weights.Flat().size_bytes());
}

// ---- Checkpoints ----

absl::Status LlamaTrainer::GatherState() {
  if (HoldsAll(*tensors_, 0)) return update_.optimizer().Gather();
  ASSIGN_OR_RETURN(gathered_,
                   GatherTensors(ranks_, manifest(), tensors_->own().manifest, tensors_->own().weights,
                                 update_.optimizer(), [this](int rank) { return tensors_->own_pieces(rank); }));
  return absl::OkStatus();
}

absl::StatusOr<formats::FileDigest> LlamaTrainer::Save(const std::string& path) {
  if (HoldsAll(*tensors_, 0)) return SaveTrainer(path, manifest(), tensors_->own().weights, &update_.optimizer());
  const std::vector<GatheredTensor> gathered = std::exchange(gathered_, {});
  return SaveGathered(path, gathered, update_.optimizer());
}

absl::Status LlamaTrainer::Load(const std::string& path) {
  ASSIGN_OR_RETURN(const formats::SafetensorsFile file, formats::SafetensorsFile::Open(path));
  absl::Status read;
  for (size_t i = 0; i < manifest().size(); ++i) {
    const core::TensorSpec& spec = manifest()[i];
    tensors_->ForEachRun(static_cast<int>(i), 0, spec.NumValues(), [&](int64_t first, std::span<float> run) {
      read.Update(std::ssize(run) == spec.NumValues() ? file.Read(spec.name, run)
                                                      : file.ReadPart(spec.name, first, run));
    });
  }
  RETURN_IF_ERROR(read);
  return update_.optimizer().LoadState(file);
}

}  // namespace causeway::worker
