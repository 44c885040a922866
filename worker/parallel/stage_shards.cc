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
    : HeldTensors(std::move(places), ranks) {
  const std::vector<int>& devices = file.schedule.place.front();
  for (int stage = 0; stage < file.schedule.stages; ++stage) {
    if (devices[static_cast<size_t>(stage)] == ranks.rank() / file.width) layouts_.emplace(stage, LayoutOf(stage));
  }
  int64_t most = 0;
  for (const auto& [stage, layout] : layouts_) most = std::max(most, layout.part_values * file.width);
  rooms_.SetSize(most);
  weights_.assign(weights_.size(), {});
  gradients_.assign(gradients_.size(), {});
}

StageShards::Layout StageShards::LayoutOf(int stage) const {
  Layout layout;
  const int j = ranks().rank() % places().width;
  std::vector<int64_t> sizes(static_cast<size_t>(places().width));
  for (const int gradient : places().stages[static_cast<size_t>(stage)]) {
    const int owner = places().owner[static_cast<size_t>(gradient)];
    const int64_t size = manifest()[static_cast<size_t>(gradient) % manifest().size()].NumValues();
    int64_t& first = sizes[static_cast<size_t>(owner)];
    layout.parts.push_back({gradient, first, size, owner == j});
    first += size;
  }
  layout.part_values = *std::ranges::max_element(sizes);
  for (Part& part : layout.parts) part.first += places().owner[static_cast<size_t>(part.gradient)] * layout.part_values;
  return layout;
}

void StageShards::Show(const Layout& layout, Gathered& gathered) {
  for (const Part& part : layout.parts) {
    const auto gradient = static_cast<size_t>(part.gradient);
    const auto view = [&](std::vector<float>& array) {
      return array.empty() ? std::span<float>()
                           : std::span(array).subspan(static_cast<size_t>(part.first), static_cast<size_t>(part.size));
    };
    weights_[gradient % manifest().size()] = view(gathered.weights);
    gradients_[gradient] = view(gathered.gradients);
  }
}

std::span<float> StageShards::OwnPart(const Layout& layout, std::vector<float>& array) const {
  const auto size = static_cast<size_t>(layout.part_values);
  return std::span(array).subspan(static_cast<size_t>(place_->rank()) * size, size);
}

std::span<float> StageShards::Whole(const Layout& layout, std::vector<float>& array) const {
  return std::span(array).first(static_cast<size_t>(layout.part_values) * static_cast<size_t>(places().width));
}

absl::Status StageShards::Gather(int stage) {
  const Layout& layout = layouts_.at(stage);
  Gathered& gathered = gathered_[stage];
  if (gathered.uses++ > 0) return absl::OkStatus();
  gathered.weights = rooms_.Take();
  Show(layout, gathered);
  for (const Part& part : layout.parts) {
    const size_t tensor = static_cast<size_t>(part.gradient) % manifest().size();
    if (part.own) std::ranges::copy(held_weights()[tensor], gathered.weights.begin() + part.first);
  }
  ++gathers_;
  const std::span<const float> own = OwnPart(layout, gathered.weights);
  return place_->Await(place_->AllGather(BytesOf(own), BytesOf(Whole(layout, gathered.weights))), ranks().timeout());
}

const MutableTensors& StageShards::GradientsOf(int stage) {
  Gathered& gathered = gathered_.at(stage);
  if (gathered.gradients.empty()) {
    gathered.gradients = rooms_.Take();
    std::ranges::fill(gathered.gradients, 0.0f);
  }
  Show(layouts_.at(stage), gathered);  // another stage may have the same tensor
  gathered.summed = true;
  return gradients_;
}

absl::Status StageShards::Scatter(const Layout& layout, Gathered& gathered) {
  ++scatters_;
  const std::span<const float> all = Whole(layout, gathered.gradients);
  RETURN_IF_ERROR(place_->Await(place_->ReduceScatter(all, OwnPart(layout, gathered.gradients)), ranks().timeout()));
  for (const Part& part : layout.parts) {
    if (!part.own) continue;
    const std::span<float> sum = held_gradients()[static_cast<size_t>(part.gradient)];
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += gathered.gradients[static_cast<size_t>(part.first) + i];
  }
  std::ranges::fill(gathered.gradients, 0.0f);
  return absl::OkStatus();
}

absl::Status StageShards::Release(int stage) {
  const Layout& layout = layouts_.at(stage);
  Gathered& gathered = gathered_.at(stage);
  if (std::exchange(gathered.summed, false)) RETURN_IF_ERROR(Scatter(layout, gathered));
  if (--gathered.uses > 0) return absl::OkStatus();
  rooms_.Give(gathered.weights);
  rooms_.Give(gathered.gradients);
  Show(layout, gathered);
  gathered_.erase(stage);
  for (auto& [other, shown] : gathered_) Show(layouts_.at(other), shown);  // where two have one tensor
  return absl::OkStatus();
}

}  // namespace causeway::worker
