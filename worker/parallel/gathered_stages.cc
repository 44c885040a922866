#include "worker/parallel/gathered_stages.h"

#include <algorithm>
#include <utility>

namespace causeway::worker {

GatheredStages::GatheredStages(std::map<int, LayoutGroup> groups, size_t tensors, Tensors& weights,
                               MutableTensors& gradients)
    : groups_(std::move(groups)), tensors_(tensors), weights_(weights), gradients_(gradients) {
  for (const auto& [stage, group] : groups_) most_ = std::max(most_, group.padded);
}

std::span<float> GatheredStages::Array(std::vector<float>& values, int stage) const {
  return std::span(values).first(static_cast<size_t>(group(stage).padded));
}

std::vector<float> GatheredStages::New() {
  if (free_.empty()) {
    free_.emplace_back(static_cast<size_t>(most_));
    ++made_;
  }
  std::vector<float> array = std::move(free_.back());
  free_.pop_back();
  return array;
}

void GatheredStages::Show(int stage, Gathered& gathered) {
  for (const Piece& piece : group(stage).pieces) {
    const auto view = [&](std::vector<float>& array) {
      return array.empty() ? std::span<float>()
                           : std::span(array).subspan(static_cast<size_t>(piece.at), static_cast<size_t>(piece.count));
    };
    const auto gradient = static_cast<size_t>(piece.tensor);
    weights_[gradient % tensors_] = view(gathered.weights);  // beyond the tensors: a tied head's gradient
    gradients_[gradient] = view(gathered.gradients);
  }
}

bool GatheredStages::Take(int stage) {
  Gathered& gathered = gathered_[stage];
  if (gathered.uses++ > 0) return false;
  gathered.weights = New();
  Show(stage, gathered);
  return true;
}

void GatheredStages::Sum(int stage) {
  Gathered& gathered = gathered_.at(stage);
  if (gathered.gradients.empty()) {
    gathered.gradients = New();
    std::ranges::fill(gathered.gradients, 0.0f);
  }
  Show(stage, gathered);  // another stage may have the same tensor
  gathered.summed = true;
}

std::span<float> GatheredStages::TakeSums(int stage) {
  Gathered& gathered = gathered_.at(stage);
  return std::exchange(gathered.summed, false) ? Array(gathered.gradients, stage) : std::span<float>();
}

void GatheredStages::Leave(int stage) {
  Gathered& gathered = gathered_.at(stage);
  if (--gathered.uses > 0) return;
  for (std::vector<float>* const array : {&gathered.weights, &gathered.gradients}) {
    if (!array->empty()) free_.push_back(std::move(*array));
    array->clear();
  }
  Show(stage, gathered);
  gathered_.erase(stage);
  for (auto& [other, shown] : gathered_) Show(other, shown);  // where two have one tensor
}

}  // namespace causeway::worker
