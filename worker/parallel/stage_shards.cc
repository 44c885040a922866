#include "worker/parallel/stage_shards.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace causeway::worker {

absl::StatusOr<std::unique_ptr<ShardedTensors>> StageShards::Open(const plan::PipelineFile& file, PipelinePlaces places,
                                                                  const TrainerRanks& ranks) {
  std::unique_ptr<StageShards> shards(new StageShards(file, std::move(places), ranks));
  RETURN_IF_ERROR(shards->OpenExchange(file));
  ASSIGN_OR_RETURN(shards->place_, ranks.values->Split(ranks.rank() / file.width, ranks.timeout()));
  return shards;
}

StageShards::StageShards(const plan::PipelineFile& file, PipelinePlaces places, const TrainerRanks& ranks)
    : HeldTensors(std::move(places), ranks), gathered_(GroupsOf(file), manifest().size(), weights_, gradients_) {
  weights_.assign(weights_.size(), {});
  gradients_.assign(gradients_.size(), {});
}

// Each rank's part is its tensors back to back, padded to the largest part.
std::map<int, LayoutGroup> StageShards::GroupsOf(const plan::PipelineFile& file) const {
  std::map<int, LayoutGroup> groups;
  for (size_t stage = 0; stage < places().stages.size(); ++stage) {
    if (file.schedule.place.front()[stage] != ranks().rank() / file.width) continue;
    LayoutGroup& group = groups[static_cast<int>(stage)];
    std::vector<int64_t> sizes(static_cast<size_t>(file.width));
    for (const int gradient : places().stages[stage]) {
      const int owner = places().owner[static_cast<size_t>(gradient)];
      const int64_t size = manifest()[static_cast<size_t>(gradient) % manifest().size()].NumValues();
      int64_t& next = sizes[static_cast<size_t>(owner)];
      group.pieces.push_back({.rank = owner, .tensor = gradient, .count = size, .at = next});
      next += size;
      group.values += size;
    }
    const int64_t part = *std::ranges::max_element(sizes);
    for (Piece& piece : group.pieces) piece.at += piece.rank * part;
    group.padded = part * file.width;
  }
  return groups;
}

std::span<float> StageShards::OwnPart(std::span<float> array) const {
  const size_t part = array.size() / static_cast<size_t>(place_->world());
  return array.subspan(static_cast<size_t>(place_->rank()) * part, part);
}

absl::Status StageShards::Gather(int stage) {
  if (!gathered_.Take(stage)) return absl::OkStatus();
  const std::span<float> all = gathered_.weights(stage);
  for (const Piece& piece : gathered_.group(stage).pieces) {
    const size_t tensor = static_cast<size_t>(piece.tensor) % manifest().size();
    if (piece.rank == place_->rank()) std::ranges::copy(held_weights()[tensor], all.begin() + piece.at);
  }
  ++gathers_;
  const std::span<const float> own = OwnPart(all);
  return place_->Await(place_->AllGather(BytesOf(own), BytesOf(all)), ranks().timeout());
}

const MutableTensors& StageShards::GradientsOf(int stage) {
  gathered_.Sum(stage);
  return gradients_;
}

absl::Status StageShards::Scatter(int stage, std::span<float> sums) {
  ++scatters_;
  const std::span<const float> all = sums;
  RETURN_IF_ERROR(place_->Await(place_->ReduceScatter(all, OwnPart(sums)), ranks().timeout()));
  for (const Piece& piece : gathered_.group(stage).pieces) {
    if (piece.rank != place_->rank()) continue;
    const std::span<float> sum = held_gradients()[static_cast<size_t>(piece.tensor)];
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += sums[static_cast<size_t>(piece.at) + i];
  }
  std::ranges::fill(sums, 0.0f);
  return absl::OkStatus();
}

absl::Status StageShards::Release(int stage) {
  if (const std::span<float> sums = gathered_.TakeSums(stage); !sums.empty()) RETURN_IF_ERROR(Scatter(stage, sums));
  gathered_.Leave(stage);
  return absl::OkStatus();
}

}  // namespace causeway::worker
