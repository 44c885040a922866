// The bits that a pipeline must give: one process, micro-batch after micro-batch.
//
//   for each rank of a place, for each copy: gradients summed by micro-batch ─► copy 0 + copy 1 ─► embedding + head,
//   where they are one tensor ─► ranks in their order ─► clip, inner optimizer
//
// Where the ranks of a place have shards, it is by micro-batch within a unit, ranks, units ─► embedding + head.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/model_manifest.h"
#include "tests/worker/optimizer/sum_of_squares.h"
#include "worker/model/llama_model.h"
#include "worker/model/llama_stage.h"
#include "worker/optimizer/host_optimizer.h"
#include "worker/parallel/llama_data.h"

namespace causeway::worker {

class SerialReference {
 public:
  // `unit`: micro-batches between two reduce-scatters of shards; 0: there are none.
  SerialReference(const core::RunConfig& config, const std::string& data, int copies, int width, int unit = 0)
      : config_(config),
        copies_(copies),
        width_(width),
        unit_(unit),
        data_(*LlamaData::Open(config, "eu", {.data_path = data})),
        manifest_(core::LlamaManifest(config.llama)),
        parameters_(manifest_),
        gradients_(manifest_),
        optimizer_(config, manifest_, parameters_, gradients_, bus_) {
    EXPECT_TRUE(data_.Initialize(manifest_, parameters_).ok());
  }

  // The mean loss.
  double Step(core::Step t) {
    const Batch batch = *data_.BatchAt(t);
    const int n = static_cast<int>(config_.inner.micro_batches), unit = unit_ > 0 ? unit_ : n;
    loss_ = 0;
    Sums sum = NoSums();
    for (int first = 0; first < n; first += unit) {
      Sums of_unit = NoSums();
      for (int j = 0; j < width_; ++j) {
        Sums mine = GradientsOf(Part(batch, j, width_), first, first + unit);
        if (unit_ == 0) AddTiedHead(mine);
        Add(mine, of_unit);
      }
      Add(of_unit, sum);
    }
    if (unit_ > 0) AddTiedHead(sum);
    for (int i = 0; i < gradients_.size(); ++i) std::ranges::copy(sum[static_cast<size_t>(i)], gradients_[i].begin());
    const auto squares = SumOfSquares(t, manifest_, gradients_);
    EXPECT_TRUE(squares.ok()) << squares.status();
    EXPECT_TRUE(optimizer_.Step(t, *squares).ok());
    return loss_;
  }

  const core::Manifest& manifest() const { return manifest_; }
  std::span<const float> tensor(int i) const { return parameters_[i]; }

 private:
  using Sums = std::vector<std::vector<float>>;  // of each tensor, and of the tied head

  Sums NoSums() const {
    Sums sums;
    for (const core::TensorSpec& spec : manifest_) sums.emplace_back(static_cast<size_t>(spec.NumValues()));
    sums.emplace_back(sums[0].size());
    return sums;
  }
  static void Add(const Sums& values, Sums& sums) {
    for (size_t i = 0; i < sums.size(); ++i) Add(values[i], sums[i]);
  }
  static void Add(const std::vector<float>& values, std::vector<float>& sum) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
  }
  void AddTiedHead(Sums& sums) const {
    if (config_.llama.tie_word_embeddings) Add(sums.back(), sums.front());
  }

  // By micro-batches [begin, end), each copy's where there are two.
  Sums GradientsOf(const Batch& rows, int begin, int end) {
    const auto n = static_cast<int>(config_.inner.micro_batches);
    const LlamaStage stage(config_.llama, data_.rows() / width_ / n, config_.sequence_length(),
                           StageRange::Whole(config_.llama));
    const auto layers = static_cast<size_t>(config_.llama.num_hidden_layers);
    std::vector<BlockActivations> blocks(layers, BlockActivations(stage.shape()));
    StageActivations kept;
    for (BlockActivations& block : blocks) kept.blocks.push_back(&block);
    stage.Prepare(kept);
    LayerGradients scratch(stage.shape());
    std::vector<float> below(static_cast<size_t>(stage.message_values()));
    Sums all = NoSums();
    for (int copy = 0; copy < copies_; ++copy) {
      Sums gradients = NoSums();
      const MutableTensors views(gradients.begin(), gradients.end());
      for (int m = begin + copy * n / copies_; m < end && m < begin + (copy + 1) * n / copies_; ++m) {
        const Batch part = Part(rows, m, n);
        loss_ += stage.Forward(parameters_.View(), part, {}, kept, {}) / n / width_;
        const float scale = 1.0f / static_cast<float>(width_) / static_cast<float>(n);
        stage.Backward(parameters_.View(), part, scale, {}, kept, scratch, below, views, {});
      }
      if (copy == 0) {
        all = std::move(gradients);
      } else {
        Add(gradients, all);
      }
    }
    return all;
  }

  const core::RunConfig config_;
  const int copies_, width_, unit_;
  LlamaData data_;
  core::Manifest manifest_;
  TensorValues parameters_, gradients_;
  offload::BusSchedule bus_;
  HostOptimizer optimizer_;
  double loss_ = 0;
};

}  // namespace causeway::worker
