#include "worker/parallel/level_shards.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/model_manifest.h"
#include "replica/host_store.h"
#include "replica/parameter_store.h"
#include "worker/model/llama_stage.h"
#include "worker/parallel/pipeline_place.h"

namespace causeway::worker {

// θ of a rank whose weights are divided: reads and moves the rank's part of a range, and leaves the rest alone.
//
// Reads copy at once. One owner thread.
class PartitionStore final : public replica::ParameterStore {
 public:
  explicit PartitionStore(PartitionedValues& values) : values_(values) {}

  int64_t BeginRead(const replica::UnitRanges& ranges, std::span<float> staging) override;
  absl::Status AwaitRead(int64_t) override { return absl::OkStatus(); }

 private:
  absl::Status DoMove(const replica::UnitRanges& ranges, const replica::Movement& movement) override;

  PartitionedValues& values_;
};

namespace {

// Calls `use(values of θ, where they are in an array of the ranges)` for each run that is here.
template <typename Use>
void ForEachRun(PartitionedValues& values, const replica::UnitRanges& ranges, const Use& use) {
  int64_t at = 0;
  for (const replica::UnitRange& range : ranges) {
    const int64_t first = range.first * core::kUnitValues, count = range.count * core::kUnitValues;
    values.ForEachRun(range.tensor, first, count,
                      [&](int64_t from, std::span<float> run) { use(run, static_cast<size_t>(at + from - first)); });
    at += count;
  }
}

}  // namespace

int64_t PartitionStore::BeginRead(const replica::UnitRanges& ranges, std::span<float> staging) {
  ForEachRun(values_, ranges,
             [&](std::span<float> run, size_t at) { std::ranges::copy(run, staging.subspan(at, run.size()).begin()); });
  return 0;
}

absl::Status PartitionStore::DoMove(const replica::UnitRanges& ranges, const replica::Movement& movement) {
  ForEachRun(values_, ranges, [&](std::span<float> run, size_t at) {
    replica::MoveValues(movement, movement.values.subspan(at, run.size()), run);
  });
  return absl::OkStatus();
}

namespace {

std::vector<int64_t> SizesOf(const core::LinkLevels& levels) {
  std::vector<int64_t> sizes;
  for (const core::LinkLevel& level : levels.site) sizes.push_back(level.of);
  return sizes;
}

// Parts as tensors: names of theirs, shapes of as many dimensions, for which the optimizer asks.
core::Manifest OwnManifestOf(const core::Manifest& whole, const std::vector<Piece>& pieces) {
  core::Manifest own;
  for (const Piece& piece : pieces) {
    core::TensorSpec& spec = own.emplace_back();
    if (piece.tensor < 0) {
      spec.name = absl::StrCat("padding.", own.size());
    } else {
      spec = whole[static_cast<size_t>(piece.tensor)];
      spec.shape.assign(spec.shape.size() - 1, 1);
    }
    spec.shape.push_back(piece.count);
  }
  return own;
}

std::map<int, LayoutGroup> GroupsOf(const PartitionLayout& layout) {
  std::map<int, LayoutGroup> groups;
  for (const LayoutGroup& group : layout.groups()) groups.emplace(static_cast<int>(groups.size()), group);
  return groups;
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
      link_levels_(levels),
      at_(at),
      layout_(PartitionLayoutOf(config.llama, levels)),
      groups_(std::move(groups)),
      values_(layout_, at_, *groups_, ranks.rank()),
      own_(OwnManifestOf(manifest(), own_pieces(ranks.rank())), values_.own_weights(), values_.own_gradients()),
      meter_(levels, PartitionPlanOf(config.llama, levels, at), config.inner.micro_batches),
      gathered_(GroupsOf(layout_), manifest().size(), weights_, gradients_),
      micro_batches_(config.inner.micro_batches) {
  if (config.llama.tie_word_embeddings) tied_head_.resize(static_cast<size_t>(manifest()[0].NumValues()));
  weights_.resize(manifest().size());
  gradients_.resize(manifest().size());
  gradients_.emplace_back(tied_head_);
}

// ---- Stages ----

absl::Status LevelShards::Gather(int stage) {
  if (!gathered_.Take(stage)) return absl::OkStatus();
  return values_.Gather(static_cast<size_t>(stage), gathered_.weights(stage));
}

const MutableTensors& LevelShards::GradientsOf(int stage) {
  gathered_.Sum(stage);
  return gradients_;
}

absl::Status LevelShards::Release(int stage) {
  if (const std::span<float> sums = gathered_.TakeSums(stage); !sums.empty()) {
    const bool last = stage == 0 && ++backwards_ == micro_batches_;
    if (last) AddTiedHead(tied_head_, gradients_.front());
    RETURN_IF_ERROR(values_.AddGradients(static_cast<size_t>(stage), sums));
  }
  gathered_.Leave(stage);
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
  return values_.bytes() + gathered_.bytes() + static_cast<int64_t>(tied_head_.size() * sizeof(float));
}

// ---- Which rank holds what ----

std::vector<int> LevelShards::Senders() const {
  std::vector<int> senders(static_cast<size_t>(layout_.Parts(at_.optimizer)));
  for (int rank = world_ - 1; rank >= 0; --rank) {
    senders[static_cast<size_t>(layout_.IndexOf(at_.optimizer, rank))] = rank;
  }
  return senders;
}

std::vector<Piece> LevelShards::own_pieces(int rank) const {
  const int sender = Senders()[static_cast<size_t>(layout_.IndexOf(at_.optimizer, rank))];
  std::vector<Piece> pieces;
  for (size_t group = 0; group < layout_.groups().size(); ++group) {
    for (Piece piece : layout_.Within(group, layout_.PartOf(group, at_.optimizer, rank))) {
      piece.rank = piece.tensor < 0 ? -1 : sender;
      pieces.push_back(piece);
    }
  }
  return pieces;
}

std::vector<Piece> LevelShards::pieces(int tensor) const {
  std::vector<Piece> pieces;
  if (at_.weights == kWholeGroup) return pieces;
  const auto [group, at] = layout_.PlaceOf(tensor);
  const int64_t size = manifest()[static_cast<size_t>(tensor)].NumValues();
  for (int rank = 0; rank < world_; ++rank) {
    const Piece part = layout_.PartOf(group, at_.weights, rank);
    const int64_t first = std::max(part.first - at, int64_t{0}), end = std::min(part.first + part.count - at, size);
    if (first < end) pieces.push_back({rank, tensor, first, end - first});
  }
  return pieces;
}

// Each part of the optimizer's level counts once.
SquareGroups LevelShards::square_groups() const {
  SquareGroups groups{.groups = std::vector<SquareGroups::Group>(static_cast<size_t>(world_)), .group_of = {}};
  for (const int sender : Senders()) groups.groups[static_cast<size_t>(sender)] = {sender, "a gradient"};
  const auto index = static_cast<size_t>(layout_.IndexOf(at_.optimizer, groups_->rank()));
  groups.group_of.assign(own_.manifest.size(), Senders()[index]);
  return groups;
}

// ---- θ here ----

absl::Status LevelShards::Initialize(const Fill& fill) {
  for (const LayoutGroup& group : layout_.groups()) {
    core::Manifest of_group;
    for (const Piece& piece : group.pieces) of_group.push_back(manifest()[static_cast<size_t>(piece.tensor)]);
    TensorValues whole(of_group);
    RETURN_IF_ERROR(fill(of_group, whole));
    for (size_t i = 0; i < group.pieces.size(); ++i) {
      const std::span<const float> from = whole[static_cast<int>(i)];
      ForEachRun(group.pieces[i].tensor, 0, std::ssize(from), [&](int64_t first, std::span<float> run) {
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
