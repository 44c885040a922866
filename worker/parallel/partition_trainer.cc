#include "worker/parallel/partition_trainer.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "core/check.h"
#include "core/clock.h"
#include "core/model_manifest.h"
#include "formats/levels_yaml.h"
#include "worker/model/machine_speeds.h"
#include "worker/parallel/state_gather.h"

namespace causeway::worker {
namespace {

constexpr double kUnknownLink = 1e9;                // bytes a second, if the site has no file of levels
constexpr double kUpdateBytes = 7 * sizeof(float);  // of a parameter: p, m, v, g are read, p, m, v written

absl::StatusOr<core::LinkLevels> ReadLevels(const std::string& path, int world) {
  if (path.empty()) return core::LinkLevels{.site = {{.name = "site", .of = world}}, .wan = {}};
  ASSIGN_OR_RETURN(core::LinkLevels levels, formats::ReadLevelsYaml(path));
  if (levels.ranks() == world) return levels;
  return absl::InvalidArgumentError(
      absl::StrCat("--levels: ", path, ": expected levels of the site's ", world, " ranks, got ", levels.ranks()));
}

std::vector<int64_t> SizesOf(const core::LinkLevels& levels) {
  std::vector<int64_t> sizes;
  for (const core::LinkLevel& level : levels.site) sizes.push_back(level.of);
  return sizes;
}

plan::PartitionPlan PlanOf(const PartitionLayout& layout, const core::LinkLevels& levels, const PartitionLevels& at) {
  double values = 0;
  for (const LayoutGroup& group : layout.groups()) values += static_cast<double>(group.padded);
  return *plan::PlanPartition({.parameters = values, .bytes = plan::ValueBytes::Float32(), .levels = levels},
                              {.weights = at.weights, .gradients = at.gradients, .optimizer = at.optimizer});
}

}  // namespace

PartitionLevels ResolvePartition(const core::PartitionConfig& names, const core::LinkLevels& levels) {
  const auto level = [&](const std::string& name) { return plan::LevelOf(levels, name).value_or(plan::kWhole); };
  PartitionLevels resolved{.weights = level(names.weights)};
  resolved.gradients = std::max(resolved.weights, level(names.gradients));
  resolved.optimizer = std::max(resolved.gradients, level(names.optimizer));
  return resolved;
}

absl::StatusOr<std::unique_ptr<Trainer>> PartitionTrainer::Make(const core::RunConfig& config, const core::SiteId& site,
                                                                const TrainerFiles& files) {
  RETURN_IF_ERROR(CheckRows(config, site, files.ranks.world()));
  Site parts;
  ASSIGN_OR_RETURN(parts.levels, ReadLevels(files.levels_path, files.ranks.world()));
  parts.partition = ResolvePartition(*config.inner.partition, parts.levels);
  ASSIGN_OR_RETURN(parts.groups,
                   LevelGroups::Open(*files.ranks.values, SizesOf(parts.levels), TimeoutOf(files.ranks.timeout_s)));
  ASSIGN_OR_RETURN(LlamaData data, LlamaData::Open(config, site, files));
  spdlog::info("partition: weights over {}, gradients over {}, optimizer over {}; sums go up {}",
               plan::LevelName(parts.levels, parts.partition.weights),
               plan::LevelName(parts.levels, parts.partition.gradients),
               plan::LevelName(parts.levels, parts.partition.optimizer),
               absl::StrJoin(parts.levels.site, ", ", [](std::string* out, const core::LinkLevel& level) {
                 absl::StrAppend(out, level.name, " of ", level.of);
               }));
  std::unique_ptr<PartitionTrainer> trainer(new PartitionTrainer(config, files, std::move(parts), std::move(data)));
  RETURN_IF_ERROR(trainer->Initialize());
  if (!files.trace_path.empty() && files.ranks.rank() == 0) RETURN_IF_ERROR(trainer->OpenTrace(files.trace_path));
  return trainer;
}

PartitionTrainer::PartitionTrainer(const core::RunConfig& config, const TrainerFiles& files, Site site, LlamaData data)
    : ranks_(files.ranks),
      site_(std::move(site)),
      data_(std::move(data)),
      manifest_(core::LlamaManifest(config.llama)),
      layout_(manifest_, GroupsOf(config.llama), SizesOf(site_.levels)),
      values_(layout_, site_.partition, *site_.groups, ranks_.rank()),
      model_(config.llama, {data_.rows(), config.sequence_length(), config.inner.micro_batches}, layout_, values_),
      parallel_(files.ranks),
      owned_(OwnedPartsOf(layout_, manifest_, site_.partition.optimizer, ranks_.rank())),
      own_weights_(owned_.manifest, values_.own_weights()),
      own_gradients_(owned_.manifest, values_.own_gradients()),
      optimizer_(config, owned_.manifest, own_weights_, bus(), files.calibration_path),
      meter_(site_.levels, PlanOf(layout_, site_.levels, site_.partition), config.inner.micro_batches) {
  optimizer_.HoldParts(owned_.firsts());
}

absl::Status PartitionTrainer::OpenTrace(const std::string& path) {
  const MachineSpeeds machine = MeasureMachine();
  Amounts speeds{{"cpu", machine.flops}, {"l2", machine.l2}, {"l3", machine.l3}, {"dram", machine.dram}};
  std::vector<std::string> names;
  for (const core::LinkLevel& level : site_.levels.site) {
    speeds.emplace_back("link " + level.name, level.bytes_per_s > 0 ? level.bytes_per_s : kUnknownLink);
    names.push_back(level.name);
  }
  ASSIGN_OR_RETURN(site_.trace, WorkTrace::Open(path, speeds));
  site_.groups->Trace(site_.trace.get(), names);
  model_.Trace(site_.trace.get());
  return absl::OkStatus();
}

// Group by group, with the initial values of a whole model.
absl::Status PartitionTrainer::Initialize() {
  for (const LayoutGroup& group : layout_.groups()) {
    core::Manifest manifest;
    for (const int tensor : group.tensors) manifest.push_back(manifest_[static_cast<size_t>(tensor)]);
    TensorValues whole(manifest);
    RETURN_IF_ERROR(data_.Initialize(manifest, whole));
    for (size_t i = 0; i < group.tensors.size(); ++i) {
      const std::span<const float> from = whole[static_cast<int>(i)];
      values_.ForEachRun(group.tensors[i], 0, std::ssize(from), [&](int64_t first, std::span<float> run) {
        std::ranges::copy(from.subspan(static_cast<size_t>(first), run.size()), run.begin());
      });
    }
  }
  return absl::OkStatus();
}

std::span<float> PartitionTrainer::tensor(int i) {
  copied_.assign(static_cast<size_t>(manifest_[static_cast<size_t>(i)].NumValues()), 0.0f);
  values_.ForEachRun(i, 0, std::ssize(copied_),
                     [&](int64_t first, std::span<float> run) { std::ranges::copy(run, copied_.begin() + first); });
  return copied_;
}

std::vector<TensorPiece> PartitionTrainer::pieces(int tensor) const {
  if (site_.partition.weights == kWholeGroup) return {};
  const auto [group, at] = layout_.PlaceOf(tensor);
  const int64_t size = manifest_[static_cast<size_t>(tensor)].NumValues();
  std::vector<TensorPiece> pieces;
  for (int rank = 0; rank < ranks_.world(); ++rank) {
    const Interval part = layout_.PartOf(group, site_.partition.weights, rank);
    const int64_t first = std::max(part.first - at, int64_t{0}), end = std::min(part.first + part.count - at, size);
    if (first < end) pieces.push_back({rank, first, end - first});
  }
  return pieces;
}

// Each part of the optimizer's level counts once.
absl::StatusOr<double> PartitionTrainer::SumOfSquares(core::Step t) {
  const int level = site_.partition.optimizer;
  double mine = 0;
  for (const double squares : optimizer_.SquaresOf(own_gradients_)) mine += squares;
  std::vector<double> all(static_cast<size_t>(ranks_.world()));
  const Collectives::Ticket ticket =
      ranks_.values->AllGather(BytesOf(std::span<const double>(&mine, 1)), BytesOf(std::span(all)));
  RETURN_IF_ERROR(RankFailure(ranks_.values->Await(ticket, timeout())));
  double sum = 0;
  std::vector<bool> counted(static_cast<size_t>(layout_.Parts(level)));
  for (int rank = 0; rank < ranks_.world(); ++rank) {
    const auto part = static_cast<size_t>(layout_.IndexOf(level, rank));
    if (counted[part]) continue;
    counted[part] = true;
    sum += all[static_cast<size_t>(rank)];
    if (std::isfinite(sum)) continue;
    RETURN_IF_ERROR(optimizer_.SumOfSquares(t, own_gradients_).status());
    return absl::DataLossError(
        absl::StrFormat("a gradient on %s is not finite in step %d", ranks_.values->NameOf(rank), t));
  }
  return sum;
}

absl::StatusOr<StepResult> PartitionTrainer::Step(core::Step t) {
  const core::Clock::TimePoint begin = core::SystemClock().Now();
  ASSIGN_OR_RETURN(const Batch batch, data_.BatchAt(t));
  values_.ClearGradients();
  const absl::StatusOr<double> loss = model_.Run(batch, parallel_.scale());
  RETURN_IF_ERROR(RankFailure(loss.status()));
  RankStep mine{.loss = *loss, .tokens = std::ssize(batch.tokens)};
  mine.compute_s = core::SystemClock().SecondsSince(begin);
  RETURN_IF_ERROR(RankFailure(values_.FinishGradients()));
  ASSIGN_OR_RETURN(const double squares, SumOfSquares(t));
  ASSIGN_OR_RETURN(const std::vector<RankStep> steps, parallel_.Share(mine));
  const core::Clock::TimePoint update = core::SystemClock().Now();
  RETURN_IF_ERROR(optimizer_.Step(t, own_gradients_, squares));
  if (site_.trace != nullptr) {
    site_.trace->Add("update", update, {{"dram", kUpdateBytes * static_cast<double>(own_weights_.Flat().size())}});
  }
  RETURN_IF_ERROR(RankFailure(values_.SpreadWeights()));
  meter_.EndStep(*site_.groups);
  if (site_.trace != nullptr) site_.trace->EndStep(t);
  return ResultOf(steps);
}

core::RankProgress PartitionTrainer::rank_progress() const {
  core::RankProgress progress = parallel_.progress();
  for (const core::LevelTraffic& level : meter_.last_step()) progress.step_bytes += level.measured;
  progress.levels = meter_.last_step();
  return progress;
}

int64_t PartitionTrainer::state_bytes() const {
  const int64_t moments = 2 * static_cast<int64_t>(own_weights_.Flat().size_bytes());
  return values_.bytes() + model_.gathered_bytes() + moments;
}

// ---- Checkpoints ----

absl::Status PartitionTrainer::GatherState() {
  const int level = site_.partition.optimizer;
  // The first rank that has a part sends it.
  std::vector<int> senders(static_cast<size_t>(layout_.Parts(level)));
  for (int rank = ranks_.world() - 1; rank >= 0; --rank) {
    senders[static_cast<size_t>(layout_.IndexOf(level, rank))] = rank;
  }
  ASSIGN_OR_RETURN(gathered_,
                   GatherTensors(ranks_, manifest_, owned_.manifest, own_weights_, optimizer_, [&](int rank) {
                     const bool sends = senders[static_cast<size_t>(layout_.IndexOf(level, rank))] == rank;
                     std::vector<StatePiece> pieces;
                     for (const TensorPart& part : OwnedPartsOf(layout_, manifest_, level, rank).parts) {
                       pieces.push_back({part.tensor, part.first, part.count, sends && part.tensor >= 0});
                     }
                     return pieces;
                   }));
  return absl::OkStatus();
}

absl::StatusOr<formats::FileDigest> PartitionTrainer::Save(const std::string& path) {
  const std::vector<GatheredTensor> gathered = std::exchange(gathered_, {});
  return SaveGathered(path, gathered, optimizer_);
}

absl::Status PartitionTrainer::Load(const std::string& path) {
  ASSIGN_OR_RETURN(const formats::SafetensorsFile file, formats::SafetensorsFile::Open(path));
  absl::Status read;
  for (size_t i = 0; i < manifest_.size(); ++i) {
    values_.ForEachRun(static_cast<int>(i), 0, manifest_[i].NumValues(), [&](int64_t first, std::span<float> run) {
      read.Update(file.ReadPart(manifest_[i].name, first, run));
    });
  }
  RETURN_IF_ERROR(read);
  return optimizer_.LoadState(file);
}

}  // namespace causeway::worker
