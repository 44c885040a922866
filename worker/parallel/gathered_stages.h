// Stages while they are gathered: an array of weights each and, once a backward has come, one of gradients.
//
//   Take(stage) ─► weights ─► Sums(stage): gradients, zero ─► Leave(stage) ─► both are free for another stage
//
// Keeps the views that stages compute with. As many arrays are made as are in use at once, each with the size of the
// largest stage. One owner thread.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "worker/model/tensor_values.h"
#include "worker/parallel/layout.h"

namespace causeway::worker {

class GatheredStages {
 public:
  // The stages' groups; pieces name gradients as LlamaStage indexes them, of which the first `tensors` have a weight.
  // The views outlive it.
  GatheredStages(std::map<int, LayoutGroup> groups, size_t tensors, Tensors& weights, MutableTensors& gradients);

  const LayoutGroup& group(int stage) const { return groups_.at(stage); }
  // Whether the stage was absent, and has to be filled. Each Take has a Leave.
  bool Take(int stage);
  std::span<float> weights(int stage) { return Array(gathered_.at(stage).weights, stage); }
  // Makes room for the stage's gradients, zero at first, and points the views to it.
  void Sum(int stage);
  // The sums since the last call; empty: there are none.
  std::span<float> TakeSums(int stage);
  void Leave(int stage);

  int64_t made() const { return made_; }  // how many arrays
  int64_t bytes() const { return made_ * most_ * static_cast<int64_t>(sizeof(float)); }

 private:
  struct Gathered {
    int uses = 0;
    bool summed = false;
    std::vector<float> weights, gradients;
  };

  std::span<float> Array(std::vector<float>& values, int stage) const;
  std::vector<float> New();
  void Show(int stage, Gathered& gathered);

  const std::map<int, LayoutGroup> groups_;
  const size_t tensors_;
  Tensors& weights_;
  MutableTensors& gradients_;
  int64_t most_ = 0, made_ = 0;
  std::map<int, Gathered> gathered_;
  std::vector<std::vector<float>> free_;
};

}  // namespace causeway::worker
