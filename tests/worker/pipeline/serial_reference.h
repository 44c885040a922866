// What a pipeline must give, to the bit: one process, micro-batch after micro-batch.
//
//   for each rank of a place, for each copy: gradients summed by micro-batch ─► copy 0 + copy 1 ─► embedding + head,
//   where they are one tensor ─► ranks in their order ─► clip, inner optimizer
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/model_manifest.h"
#include "worker/train/inner_optimizer.h"
#include "worker/train/llama_data.h"
#include "worker/train/llama_model.h"
#include "worker/train/llama_stage.h"

namespace causeway::worker {

class SerialReference {
 public:
  SerialReference(const core::RunConfig& config, const std::string& data, int copies, int width)
      : config_(config),
        copies_(copies),
        width_(width),
        data_(*LlamaData::Open(config, "eu", {.data_path = data})),
        manifest_(core::LlamaManifest(config.llama)),
        parameters_(manifest_),
        optimizer_(config, manifest_, parameters_, bus_) {
    EXPECT_TRUE(data_.Initialize(manifest_, parameters_).ok());
  }

  // The mean loss.
  double Step(core::Step t) {
    const Batch batch = *data_.BatchAt(t);
    TensorValues sum(manifest_);
    loss_ = 0;
    for (int j = 0; j < width_; ++j) {
      const std::vector<std::vector<float>> mine = GradientsOf(Part(batch, j, width_));
      for (int i = 0; i < sum.size(); ++i) Add(mine[static_cast<size_t>(i)], sum[i]);
    }
    const auto squares = optimizer_.SumOfSquares(t, sum);
    EXPECT_TRUE(squares.ok()) << squares.status();
    EXPECT_TRUE(optimizer_.Step(t, sum, *squares).ok());
    return loss_;
  }

  const core::Manifest& manifest() const { return manifest_; }
  std::span<const float> tensor(int i) const { return parameters_[i]; }

 private:
  static void Add(std::span<const float> values, std::span<float> sum) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
  }

  std::vector<std::vector<float>> GradientsOf(const Batch& rows) {
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
    std::vector<std::vector<float>> first;
    for (int copy = 0; copy < copies_; ++copy) {
      std::vector<std::vector<float>> gradients;
      for (const core::TensorSpec& spec : manifest_) gradients.emplace_back(static_cast<size_t>(spec.NumValues()));
      gradients.emplace_back(gradients[0].size());  // the tied head's
      const MutableTensors views(gradients.begin(), gradients.end());
      for (int m = copy * n / copies_; m < (copy + 1) * n / copies_; ++m) {
        const Batch part = Part(rows, m, n);
        loss_ += stage.Forward(parameters_.View(), part, {}, kept, {}) / n / width_;
        const float scale = 1.0f / static_cast<float>(width_) / static_cast<float>(n);
        stage.Backward(parameters_.View(), part, scale, {}, kept, scratch, below, views, {});
      }
      if (copy == 0) {
        first = std::move(gradients);
      } else {
        for (size_t i = 0; i < first.size(); ++i) Add(gradients[i], first[i]);
      }
    }
    if (config_.llama.tie_word_embeddings) Add(first.back(), first.front());
    return first;
  }

  const core::RunConfig config_;
  const int copies_, width_;
  LlamaData data_;
  core::Manifest manifest_;
  TensorValues parameters_;
  offload::BusSchedule bus_;
  InnerOptimizer optimizer_;
  double loss_ = 0;
};

}  // namespace causeway::worker
