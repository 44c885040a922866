#include "worker/parallel/level_shards.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/model_manifest.h"
#include "worker/model/llama_stage.h"
#include "worker/parallel/partition_store.h"
#include "worker/parallel/pipeline_place.h"

namespace causeway::worker {
namespace {

std::vector<int64_t> SizesOf(const core::LinkLevels& levels) {
  std::vector<int64_t> sizes;
  for (const core::LinkLevel& level : levels.site) sizes.push_back(level.of);
  return sizes;
}

}  // namespace

PartitionLevels ResolvePartition(const core::PartitionConfig& names, const core::LinkLevels& levels) {
  const auto level = [&](const std::string& name) { return plan::LevelOf(levels, name).value_or(plan::kWhole); };
  PartitionLevels resolved{.weights = level(names.weights)};
  resolved.gradients = std::max(resolved.weights, level(names.gradients));
  resolved.optimizer = std::max(resolved.gradients, level(names.optimizer));
  return resolved;
}

PartitionLayout PartitionLayoutOf(const core::LlamaConfig& config, const core::LinkLevels& levels) {
  std::vector<std::vector<int>> groups;
  for (const plan::StageLayers& layers :
       EvenSplit(static_cast<int>(config.num_hidden_layers), static_cast<int>(config.num_hidden_layers))) {
    groups.push_back(LlamaStage(config, 1, 1, RangeOf(layers)).tensors());
    if (!layers.embedding) std::erase(groups.back(), 0);
  }
  return PartitionLayout(core::LlamaManifest(config), groups, SizesOf(levels));
}

plan::PipelineFile PartitionProgram(const core::LlamaConfig& config, int64_t micro_batches, int world) {
  using Kind = plan::OperationKind;
  const auto layers = static_cast<int>(config.num_hidden_layers);
  std::vector<plan::ScheduleStep> list;
  const auto add = [&](Kind kind, int stage, int micro_batch) {
    list.push_back({.first = {.kind = kind, .stage = stage, .micro_batch = micro_batch}, .second = std::nullopt});
  };
  const bool stays = config.tie_word_embeddings && layers > 1;  // stage 0: the last one needs its embedding, too
  for (int m = 0; m < micro_batches; ++m) {
    for (int stage = 0; stage < layers; ++stage) {
      add(Kind::kGather, stage, 0);
      add(Kind::kForward, stage, m);
      if (!stays || stage > 0) add(Kind::kRelease, stage, 0);
    }
    for (int stage = layers; stage-- > 0;) {
      if (!stays || stage > 0) add(Kind::kGather, stage, 0);
      add(Kind::kBackward, stage, m);
      add(Kind::kRelease, stage, 0);
    }
  }
  return {.schedule = {.devices = 1,
                       .micro_batches = static_cast<int>(micro_batches),
                       .stages = layers,
                       .place = {std::vector<int>(static_cast<size_t>(layers), 0)},
                       .lists = {std::move(list)}},
          .width = world,
          .split = EvenSplit(layers, layers)};
}

plan::PartitionPlan PartitionPlanOf(const core::LlamaConfig& config, const core::LinkLevels& levels,
                                    const PartitionLevels& at) {
  const PartitionLayout layout = PartitionLayoutOf(config, levels);
  plan::PartitionInput input{.bytes = plan::ValueBytes::Float32(), .levels = levels};
  for (const LayoutGroup& group : layout.groups()) input.parameters += static_cast<double>(group.padded);
  if (config.tie_word_embeddings && layout.groups().size() > 1) {
    input.gathered_once = static_cast<double>(layout.groups().front().padded);
  }
  return *plan::PlanPartition(input, {.weights = at.weights, .gradients = at.gradients, .optimizer = at.optimizer});
}

absl::StatusOr<std::unique_ptr<LevelShards>> LevelShards::Open(const core::RunConfig& config,
                                                               const core::LinkLevels& levels,
                                                               const PartitionLevels& at, const TrainerRanks& ranks) {
  ASSIGN_OR_RETURN(std::unique_ptr<LevelGroups> groups,
                   LevelGroups::Open(*ranks.values, SizesOf(levels), ranks.timeout()));
  return std::unique_ptr<LevelShards>(new LevelShards(config, levels, at, ranks, std::move(groups)));
}

LevelShards::LevelShards(const core::RunConfig& config, const core::LinkLevels& levels, const PartitionLevels& at,
                         const TrainerRanks& ranks, std::unique_ptr<LevelGroups> groups)
    : ShardedTensors(core::LlamaManifest(config.llama)),
      world_(ranks.world()),
      at_(at),
      layout_(PartitionLayoutOf(config.llama, levels)),
      groups_(std::move(groups)),
      values_(layout_, at_, *groups_, ranks.rank()),
      owned_(OwnedPartsOf(layout_, manifest(), at_.optimizer, ranks.rank())),
      own_(owned_.manifest, values_.own_weights(), values_.own_gradients()),
      meter_(levels, PartitionPlanOf(config.llama, levels, at), config.inner.micro_batches),
      micro_batches_(config.inner.micro_batches) {
  int64_t most = 0;
  for (const LayoutGroup& group : layout_.groups()) most = std::max(most, group.padded);
  rooms_.SetSize(most);
  if (config.llama.tie_word_embeddings) tied_head_.resize(static_cast<size_t>(manifest()[0].NumValues()));
  weights_.resize(manifest().size());
  gradients_.resize(manifest().size());
  gradients_.emplace_back(tied_head_);
}

// ---- Stages ----

void LevelShards::Show(int stage) {
  Gathered& gathered = gathered_[stage];
  const LayoutGroup& group = layout_.groups()[static_cast<size_t>(stage)];
  for (size_t i = 0; i < group.tensors.size(); ++i) {
    const int64_t end = i + 1 < group.tensors.size() ? group.firsts[i + 1] : group.values;
    const auto view = [&](std::vector<float>& room) {
      return room.empty() ? std::span<float>()
                          : std::span(room).subspan(static_cast<size_t>(group.firsts[i]),
                                                    static_cast<size_t>(end - group.firsts[i]));
    };
    weights_[static_cast<size_t>(group.tensors[i])] = view(gathered.weights);
    gradients_[static_cast<size_t>(group.tensors[i])] = view(gathered.gradients);
  }
}

absl::Status LevelShards::Gather(int stage) {
  Gathered& gathered = gathered_[stage];
  if (gathered.uses++ > 0) return absl::OkStatus();
  gathered.weights = rooms_.Take();
  Show(stage);
  const auto group = static_cast<size_t>(stage);
  return values_.Gather(group, std::span(gathered.weights).first(static_cast<size_t>(layout_.groups()[group].padded)));
}

const MutableTensors& LevelShards::GradientsOf(int stage) {
  Gathered& gathered = gathered_.at(stage);
  if (gathered.gradients.empty()) {
    gathered.gradients = rooms_.Take();
    std::ranges::fill(gathered.gradients, 0.0f);
    Show(stage);
  }
  return gradients_;
}

absl::Status LevelShards::Release(int stage) {
  Gathered& gathered = gathered_.at(stage);
  CHECK(--gathered.uses == 0);
  const auto group = static_cast<size_t>(stage);
  if (!gathered.gradients.empty()) {
    const bool last = stage == 0 && ++backwards_ == micro_batches_;
    if (last) AddTiedHead(tied_head_, gradients_.front());
    RETURN_IF_ERROR(values_.AddGradients(
        group, std::span(gathered.gradients).first(static_cast<size_t>(layout_.groups()[group].padded))));
  }
  rooms_.Give(gathered.weights);
  rooms_.Give(gathered.gradients);
  Show(stage);
  return absl::OkStatus();
}

void LevelShards::Begin(bool sums) {
  CHECK(sums);
  backwards_ = 0;
}

absl::Status LevelShards::Spread() {
  RETURN_IF_ERROR(values_.SpreadWeights());
  meter_.EndStep(*groups_);
  return absl::OkStatus();
}

std::vector<int64_t> LevelShards::stage_values() const {
  std::vector<int64_t> values;
  for (const LayoutGroup& group : layout_.groups()) values.push_back(group.values);
  return values;
}

int64_t LevelShards::sent_bytes() const {
  int64_t all = 0;
  for (int level = 0; level < groups_->levels(); ++level) all += groups_->sent_bytes(level);
  return all;
}

int64_t LevelShards::bytes() const {
  return values_.bytes() + rooms_.bytes() + static_cast<int64_t>(tied_head_.size() * sizeof(float));
}

// ---- Which rank holds what ----

std::vector<int> LevelShards::Senders() const {
  std::vector<int> senders(static_cast<size_t>(layout_.Parts(at_.optimizer)));
  for (int rank = world_ - 1; rank >= 0; --rank) {
    senders[static_cast<size_t>(layout_.IndexOf(at_.optimizer, rank))] = rank;
  }
  return senders;
}

std::vector<StatePiece> LevelShards::own_pieces(int rank) const {
  const bool sends = Senders()[static_cast<size_t>(layout_.IndexOf(at_.optimizer, rank))] == rank;
  std::vector<StatePiece> pieces;
  for (const TensorPart& part : OwnedPartsOf(layout_, manifest(), at_.optimizer, rank).parts) {
    pieces.push_back({part.tensor, part.first, part.count, sends && part.tensor >= 0});
  }
  return pieces;
}

std::vector<TensorPiece> LevelShards::pieces(int tensor) const {
  std::vector<TensorPiece> pieces;
  if (at_.weights == kWholeGroup) return pieces;
  const auto [group, at] = layout_.PlaceOf(tensor);
  const int64_t size = manifest()[static_cast<size_t>(tensor)].NumValues();
  for (int rank = 0; rank < world_; ++rank) {
    const Interval part = layout_.PartOf(group, at_.weights, rank);
    const int64_t first = std::max(part.first - at, int64_t{0}), end = std::min(part.first + part.count - at, size);
    if (first < end) pieces.push_back({rank, first, end - first});
  }
  return pieces;
}

// Each part of the optimizer's level counts once.
SquareGroups LevelShards::square_groups() const {
  SquareGroups groups{.groups = std::vector<SquareGroups::Group>(static_cast<size_t>(world_)), .group_of = {}};
  for (const int sender : Senders()) groups.groups[static_cast<size_t>(sender)] = {sender, "a gradient"};
  const auto index = static_cast<size_t>(layout_.IndexOf(at_.optimizer, groups_->rank()));
  groups.group_of.assign(owned_.parts.size(), Senders()[index]);
  return groups;
}

// ---- θ here ----

absl::Status LevelShards::Initialize(const Fill& fill) {
  for (const LayoutGroup& group : layout_.groups()) {
    core::Manifest of_group;
    for (const int tensor : group.tensors) of_group.push_back(manifest()[static_cast<size_t>(tensor)]);
    TensorValues whole(of_group);
    RETURN_IF_ERROR(fill(of_group, whole));
    for (size_t i = 0; i < group.tensors.size(); ++i) {
      const std::span<const float> from = whole[static_cast<int>(i)];
      ForEachRun(group.tensors[i], 0, std::ssize(from), [&](int64_t first, std::span<float> run) {
        std::ranges::copy(from.subspan(static_cast<size_t>(first), run.size()), run.begin());
      });
    }
  }
  return absl::OkStatus();
}

std::unique_ptr<replica::ParameterStore> LevelShards::MakeStore(offload::BusSchedule*) {
  return std::make_unique<PartitionStore>(values_);
}

}  // namespace causeway::worker
