#include "worker/parallel/stage_shards.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace causeway::worker {
StageShards::StageShards(const PipelinePlaces& places, Tensors weights, MutableTensors gradients,
                         Collectives::Timeout timeout)
    : places_(places),
      weights_(std::move(weights)),
      gradients_(std::move(gradients)),
      timeout_(timeout),
      gathered_weights_(weights_.size()),
      gathered_gradients_(gradients_.size()) {}

absl::StatusOr<std::unique_ptr<StageShards>> StageShards::Open(Collectives& ranks, const PipelinePlaces& places,
                                                               const PipelineProgram& program, Tensors weights,
                                                               MutableTensors gradients, Collectives::Timeout timeout) {
  std::unique_ptr<StageShards> shards(new StageShards(places, std::move(weights), std::move(gradients), timeout));
  ASSIGN_OR_RETURN(shards->place_, ranks.Split(ranks.rank() / places.width, timeout));
  using Kind = plan::OperationKind;
  struct Use {
    int open = 0;
    size_t first = 0;  // G
    bool sums = false;
  };
  std::map<int, Use> uses;
  for (const PipelineStep& step : program.steps) {
    const int stage = step.operation.stage;
    if (!shards->layouts_.contains(stage)) {
      shards->layouts_.emplace(stage, shards->LayoutOf(stage, ranks.rank() % places.width));
    }
    Use& use = uses[stage];
    switch (step.operation.kind) {
      case Kind::kGather:
        if (use.open++ == 0) use.first = shards->backward_.size();
        shards->backward_.push_back(false);
        break;
      case Kind::kRelease:
        --use.open;
        shards->scatters_at_.push_back(std::exchange(use.sums, false));
        break;
      case Kind::kBackward:
      case Kind::kWeight: shards->backward_[use.first] = use.sums = true; break;
      default: break;
    }
  }
  return shards;
}

StageShards::Layout StageShards::LayoutOf(int stage, int j) const {
  Layout layout;
  std::vector<int64_t> sizes(static_cast<size_t>(places_.width));
  for (const int gradient : places_.stages[static_cast<size_t>(stage)]) {
    const int owner = places_.owner[static_cast<size_t>(gradient)];
    const int64_t size = places_.manifest[static_cast<size_t>(gradient) % places_.manifest.size()].NumValues();
    int64_t& first = sizes[static_cast<size_t>(owner)];
    layout.parts.push_back({gradient, first, size, owner == j});
    first += size;
  }
  layout.part_values = *std::ranges::max_element(sizes);
  for (Part& part : layout.parts) part.first += places_.owner[static_cast<size_t>(part.gradient)] * layout.part_values;
  return layout;
}

std::vector<float> StageShards::TakeBuffer() {
  if (free_.empty()) {
    int64_t most = 0;
    for (const auto& [stage, layout] : layouts_) most = std::max(most, layout.part_values * places_.width);
    free_.emplace_back(static_cast<size_t>(most));
    ++buffers_;
  }
  std::vector<float> buffer = std::move(free_.back());
  free_.pop_back();
  return buffer;
}

void StageShards::Show(const Layout& layout, Gathered& gathered) {
  for (const Part& part : layout.parts) {
    const auto gradient = static_cast<size_t>(part.gradient);
    const auto view = [&](std::vector<float>& array) {
      return array.empty() ? std::span<float>()
                           : std::span(array).subspan(static_cast<size_t>(part.first), static_cast<size_t>(part.size));
    };
    gathered_weights_[gradient % places_.manifest.size()] = view(gathered.weights);
    gathered_gradients_[gradient] = view(gathered.gradients);
  }
}

std::span<float> StageShards::OwnPart(const Layout& layout, std::vector<float>& array) const {
  const auto size = static_cast<size_t>(layout.part_values);
  return std::span(array).subspan(static_cast<size_t>(place_->rank()) * size, size);
}

std::span<float> StageShards::Whole(const Layout& layout, std::vector<float>& array) const {
  return std::span(array).first(static_cast<size_t>(layout.part_values) * static_cast<size_t>(places_.width));
}

absl::Status StageShards::Gather(int stage) {
  const Layout& layout = layouts_.at(stage);
  Gathered& gathered = gathered_[stage];
  const bool backward = backward_[next_gather_++];
  if (gathered.uses++ > 0) return absl::OkStatus();
  gathered.weights = TakeBuffer();
  if (backward) {
    gathered.gradients = TakeBuffer();
    std::ranges::fill(gathered.gradients, 0.0f);
  }
  Show(layout, gathered);
  for (const Part& part : layout.parts) {
    const size_t tensor = static_cast<size_t>(part.gradient) % places_.manifest.size();
    if (part.own) std::ranges::copy(weights_[tensor], gathered.weights.begin() + part.first);
  }
  ++gathers_;
  const std::span<const float> own = OwnPart(layout, gathered.weights);
  return place_->Await(place_->AllGather(BytesOf(own), BytesOf(Whole(layout, gathered.weights))), timeout_);
}

absl::Status StageShards::Scatter(const Layout& layout, Gathered& gathered) {
  ++scatters_;
  const std::span<const float> all = Whole(layout, gathered.gradients);
  RETURN_IF_ERROR(place_->Await(place_->ReduceScatter(all, OwnPart(layout, gathered.gradients)), timeout_));
  for (const Part& part : layout.parts) {
    if (!part.own) continue;
    const std::span<float> sum = gradients_[static_cast<size_t>(part.gradient)];
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += gathered.gradients[static_cast<size_t>(part.first) + i];
  }
  std::ranges::fill(gathered.gradients, 0.0f);
  return absl::OkStatus();
}

absl::Status StageShards::Release(int stage) {
  const Layout& layout = layouts_.at(stage);
  Gathered& gathered = gathered_.at(stage);
  if (scatters_at_[next_release_++]) RETURN_IF_ERROR(Scatter(layout, gathered));
  if (--gathered.uses > 0) return absl::OkStatus();
  for (std::vector<float>* const array : {&gathered.weights, &gathered.gradients}) {
    if (!array->empty()) free_.push_back(std::move(*array));
    array->clear();
  }
  Show(layout, gathered);
  gathered_.erase(stage);
  for (auto& [other, shown] : gathered_) Show(layouts_.at(other), shown);  // where two have one tensor
  return absl::OkStatus();
}

}  // namespace causeway::worker
