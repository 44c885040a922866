#include "worker/parallel/llama_trainer.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/clock.h"
#include "core/manifest.h"
#include "core/random.h"
#include "formats/named_file.h"
#include "worker/model/stage_profile.h"
#include "worker/model/tensor_values.h"
#include "worker/optimizer/trainer_file.h"
#include "worker/parallel/host_parts.h"
#include "worker/parallel/layout.h"
#include "worker/parallel/level_shards.h"
#include "worker/parallel/pipeline_place.h"
#include "worker/parallel/traced_stages.h"
#include "worker/ranks/rank_steps.h"

namespace causeway::worker {

// Gathers a trainer's state at rank 0, to write a checkpoint from, where its ranks hold pieces of tensors.
// The pieces of the whole manifest that a rank holds as tensors of its own, in its order; `rank` is the first that has
// the piece, and sends it. The same on all ranks.
using StatePieces = std::function<std::vector<Piece>(int rank)>;

// θ and the optimizer's tensors of each piece go from the rank that sends it to rank 0, which returns them whole, in
// the order of `whole`; other ranks return none. Every rank calls it, with what it holds. INTERNAL: a rank has failed.
absl::StatusOr<std::vector<GatheredTensor>> GatherTensors(const TrainerRanks& ranks, const core::Manifest& whole,
                                                          const core::Manifest& held, const TensorValues& parameters,
                                                          OptimizerState& optimizer, const StatePieces& pieces_of);

absl::StatusOr<std::vector<GatheredTensor>> GatherTensors(const TrainerRanks& ranks, const core::Manifest& whole,
                                                          const core::Manifest& held, const TensorValues& parameters,
                                                          OptimizerState& optimizer, const StatePieces& pieces_of) {
  std::vector<formats::TensorData> state;
  std::map<std::string, std::string> metadata;
  for (size_t i = 0; i < held.size(); ++i) {
    state.push_back({held[i].name, held[i].shape, parameters[static_cast<int>(i)]});
  }
  RETURN_IF_ERROR(optimizer.AppendState(state, metadata));
  const size_t kinds = state.size() / held.size();  // θ, and what the optimizer has of each tensor
  // After θ, tensor by tensor: "first_moment.NAME", "second_moment.NAME".
  const auto at = [&](size_t kind, size_t i) { return kind == 0 ? i : held.size() + i * (kinds - 1) + kind - 1; };
  std::vector<GatheredTensor> gathered;
  for (size_t kind = 0; kind < kinds && ranks.rank() == 0; ++kind) {
    const std::string& first = state[at(kind, 0)].name;
    const std::string prefix = first.substr(0, first.size() - held[0].name.size());
    for (const core::TensorSpec& spec : whole) {
      gathered.push_back({prefix + spec.name, spec.shape, std::vector<float>(static_cast<size_t>(spec.NumValues()))});
    }
  }
  Collectives::Ticket ticket = 0;
  for (int from = 0; from < ranks.world(); ++from) {
    if (ranks.rank() != 0 && ranks.rank() != from) continue;
    const std::vector<Piece> pieces = pieces_of(from);
    for (size_t kind = 0; kind < kinds; ++kind) {
      for (size_t i = 0; i < pieces.size(); ++i) {
        if (pieces[i].rank != from) continue;
        if (ranks.rank() != 0) {
          ticket = ranks.values->Send(BytesOf(state[at(kind, i)].values), 0);
          continue;
        }
        std::vector<float>& values = gathered[kind * whole.size() + static_cast<size_t>(pieces[i].tensor)].values;
        const std::span<float> to =
            std::span(values).subspan(static_cast<size_t>(pieces[i].first), static_cast<size_t>(pieces[i].count));
        if (from == 0) {
          std::ranges::copy(state[at(kind, i)].values, to.begin());
        } else {
          ticket = ranks.values->Receive(BytesOf(to), from);
        }
      }
    }
  }
  const absl::Status done = ticket == 0 ? absl::OkStatus() : ranks.values->Await(ticket, TimeoutOf(ranks.timeout_s));
  optimizer.Saved();
  RETURN_IF_ERROR(RankFailure(done));
  return gathered;
}

namespace {

constexpr int64_t kMaxFileBytes = int64_t{64} << 20;
constexpr double kUnknownLink = 1e9;  // bytes a second, if the site has no file of levels

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

absl::StatusOr<plan::PipelineFile> ProgramOf(const core::RunConfig& config, const TrainerFiles& files,
                                             const std::optional<Partition>& partition) {
  if (!files.pipeline_path.empty()) return ReadSchedule(config, files);
  if (partition) return PartitionProgram(config.llama, config.inner.micro_batches, files.ranks.world());
  return OneStageProgram(config.llama, config.inner.micro_batches, files.ranks.world());
}

// The rank holds the whole state, and is the one that sends it.
bool HoldsAll(const ShardedTensors& tensors, int rank) {
  const std::vector<Piece> pieces = tensors.own_pieces(rank);
  return pieces.size() == tensors.manifest().size() && tensors.HoldsWholeTensors(rank) &&
         std::ranges::all_of(pieces, [&](const Piece& piece) { return piece.rank == rank; });
}

}  // namespace

struct LlamaTrainer::Plan {
  std::optional<Partition> partition;
  plan::PipelineFile file;

  static absl::StatusOr<Plan> Of(const core::RunConfig& config, const TrainerFiles& files) {
    Plan plan;
    ASSIGN_OR_RETURN(plan.partition, ReadPartition(config, files));
    ASSIGN_OR_RETURN(plan.file, ProgramOf(config, files, plan.partition));
    return plan;
  }
};

absl::StatusOr<std::unique_ptr<Trainer>> LlamaTrainer::Make(const core::RunConfig& config, const core::SiteId& site,
                                                            const TrainerFiles& files,
                                                            std::unique_ptr<DeviceRank> device) {
  ASSIGN_OR_RETURN(const Plan plan, Plan::Of(config, files));
  TrainerFiles of_device = files;
  of_device.ranks.devices = plan.file.schedule.devices;
  of_device.ranks.crossing = config.inner.onebit.warmup_codec;
  RETURN_IF_ERROR(CheckRows(config, site, of_device.ranks.data_world()));
  ASSIGN_OR_RETURN(LlamaData data, LlamaData::Open(config, site, of_device));
  ASSIGN_OR_RETURN(PipelinePrograms programs, CompilePipeline(plan.file.schedule));
  const TrainerRanks ranks = device == nullptr ? of_device.ranks : device->With(of_device.ranks);
  std::unique_ptr<LlamaTrainer> trainer(
      new LlamaTrainer(ranks, std::move(programs), std::move(data), std::move(device)));
  RETURN_IF_ERROR(trainer->Open(config, plan, of_device));
  return trainer;
}

absl::Status LlamaTrainer::Open(const core::RunConfig& config, const Plan& plan, const TrainerFiles& files) {
  const plan::PipelineFile& file = plan.file;
  StagesRequest request{.config = config.llama,
                        .file = file,
                        .device = ranks_.rank() / file.width,
                        .batch_rows = data_.rows() / file.schedule.micro_batches,
                        .sequence = config.sequence_length(),
                        .timed = !files.pipeline_path.empty()};
  if (file.schedule.stages == 1) request.on_final = [this](int tensor) { update_->Final(tensor); };
  ASSIGN_OR_RETURN(parts_, device_ == nullptr
                               ? OpenHostParts(config, request, plan.partition, ranks_, files.calibration_path, bus())
                               : device_->Open({.config = config,
                                                .ranks = ranks_,
                                                .stages = request,
                                                .calibration_path = files.calibration_path,
                                                .evaluates = config.eval.every_rounds > 0 && data_.held_out().corpus}));
  RETURN_IF_ERROR(parts_.tensors->Initialize(
      [&](const core::Manifest& manifest, TensorValues& values) { return data_.Initialize(manifest, values); }));
  RETURN_IF_ERROR(parts_.tensors->WriteWeights());
  store_ = parts_.tensors->MakeStore(&bus());
  update_.emplace(config, *parts_.tensors, *parts_.optimizer, ranks_);
  ahead_.emplace([this](core::Step t) { return data_.BatchAt(t); }, file.schedule.micro_batches,
                 parts_.stages->sorts_rows());
  ASSIGN_OR_RETURN(links_, PipelineLinks::Open(ranks_, programs_, file.width, parts_.stages->message_values()));
  if (files.pipeline_path.empty()) return OpenWorkTrace(config, file, files);
  spdlog::info("pipeline: device {} of {}, {} of {} tensors, {} micro-batches, {} receive buffers for a sender",
               request.device, file.schedule.devices, parts_.tensors->own().manifest.size(), manifest().size(),
               file.schedule.micro_batches, programs_.slots);
  ASSIGN_OR_RETURN(trace_, PipelineTrace::Open(files.trace_path, ranks_, programs_, file.width));
  return absl::OkStatus();
}

absl::Status LlamaTrainer::OpenWorkTrace(const core::RunConfig& config, const plan::PipelineFile& file,
                                         const TrainerFiles& files) {
  LevelShards* const shards = dynamic_cast<LevelShards*>(parts_.tensors.get());
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
  update_->Trace(work_trace_.get());
  const int64_t rows = data_.rows() / file.schedule.micro_batches * config.sequence_length();
  parts_.stages =
      std::make_unique<TracedStages>(std::move(parts_.stages), shards->stage_values(), rows, work_trace_.get());
  return absl::OkStatus();
}

void LlamaTrainer::SetSites(const std::vector<core::SiteId>& names) {
  ahead_->Forget();  // its rows may go to another site
  data_.SetSites(names);
}

std::unique_ptr<Evaluator> LlamaTrainer::NewEvaluator() const {
  const HeldOut held_out = data_.held_out();
  if (held_out.corpus == nullptr) return nullptr;
  std::unique_ptr<Evaluator> on_device = parts_.stages->NewEvaluator(held_out);
  return on_device == nullptr ? data_.NewEvaluator() : std::move(on_device);
}

absl::StatusOr<StepResult> LlamaTrainer::Step(core::Step t) {
  ASSIGN_OR_RETURN(std::vector<PreparedBatch> parts, ahead_->Take(t));
  const int64_t tokens = std::ssize(parts) * std::ssize(parts.front().batch.tokens);
  ShardedTensors& tensors = *parts_.tensors;
  ModelStages& stages = *parts_.stages;
  tensors.ClearGradients();
  update_->Begin();
  RETURN_IF_ERROR(stages.BeginStep(std::move(parts), update_->scale()));
  if (trace_ != nullptr) RETURN_IF_ERROR(RankFailure(trace_->Begin()));
  std::vector<PipelineSpan> spans;
  RETURN_IF_ERROR(RankFailure(RunPipelineStep(program(), *links_, tensors, stages, spans)));
  const core::Clock::TimePoint computed = core::SystemClock().Now();
  RETURN_IF_ERROR(stages.EndStep());
  RankStep mine{.loss = stages.loss() * ranks_.devices,  // only from the last stages, averaged over the ranks
                .compute_s = core::SystemClock().SecondsSince(computed),
                .tokens = ranks_.rank() < ranks_.data_world() ? tokens : 0};
  if (trace_ != nullptr) RETURN_IF_ERROR(RankFailure(trace_->Write(t, spans)));
  for (const PipelineSpan& span : spans) {
    if (IsCompute(span.operation.kind)) mine.compute_s += span.end_s - span.begin_s;
  }
  ASSIGN_OR_RETURN(const std::vector<RankStep> steps, update_->Finish(t, mine));
  if (work_trace_ != nullptr) work_trace_->EndStep(t);
  const int64_t sent = links_->sent_bytes() + tensors.sent_bytes();
  step_bytes_ = static_cast<double>(sent - std::exchange(sent_bytes_, sent));
  return ResultOf(steps);
}

core::RankProgress LlamaTrainer::rank_progress() const {
  core::RankProgress progress = update_->rank_progress();
  progress.step_bytes += step_bytes_;
  progress.levels = parts_.tensors->levels();
  return progress;
}

int64_t LlamaTrainer::state_bytes() const {
  return parts_.tensors->bytes() + 2 * static_cast<int64_t>(parts_.tensors->own().weights.Flat().size_bytes());
}

// ---- Checkpoints ----

absl::Status LlamaTrainer::GatherState() {
  if (HoldsAll(tensors(), 0)) return parts_.optimizer->Gather();
  RETURN_IF_ERROR(parts_.tensors->ReadWeights());
  ASSIGN_OR_RETURN(gathered_,
                   GatherTensors(ranks_, manifest(), parts_.tensors->own().manifest, parts_.tensors->own().weights,
                                 *parts_.optimizer, [this](int rank) { return parts_.tensors->own_pieces(rank); }));
  return absl::OkStatus();
}

absl::StatusOr<formats::FileDigest> LlamaTrainer::Save(const std::string& path) {
  if (HoldsAll(tensors(), 0)) {
    RETURN_IF_ERROR(parts_.tensors->ReadWeights());
    return SaveTrainer(path, manifest(), parts_.tensors->own().weights, parts_.optimizer.get());
  }
  const std::vector<GatheredTensor> gathered = std::exchange(gathered_, {});
  return SaveGathered(path, gathered, *parts_.optimizer);
}

absl::Status LlamaTrainer::Load(const std::string& path) {
  ASSIGN_OR_RETURN(const formats::SafetensorsFile file, formats::SafetensorsFile::Open(path));
  absl::Status read;
  for (size_t i = 0; i < manifest().size(); ++i) {
    const core::TensorSpec& spec = manifest()[i];
    parts_.tensors->ForEachRun(static_cast<int>(i), 0, spec.NumValues(), [&](int64_t first, std::span<float> run) {
      read.Update(std::ssize(run) == spec.NumValues() ? file.Read(spec.name, run)
                                                      : file.ReadPart(spec.name, first, run));
    });
  }
  RETURN_IF_ERROR(read);
  RETURN_IF_ERROR(parts_.optimizer->LoadState(file));
  return parts_.tensors->WriteWeights();
}

}  // namespace causeway::worker
