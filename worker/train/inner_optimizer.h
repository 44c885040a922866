// The inner optimizer of a site: schedule, clipping and one AdamW or SGD step over all tensors.
//
//   gradients ─► all finite? ─► global norm ─► clip (scaled in place) ─► AdamW or SGD at lr(t) ─► θ
//
// Its state (m, v) starts at zero, stays in the site and is never reset by a sync. The bias correction counts the steps
// that this process took, because that is how old m and v are; the learning rate follows the run's step t, so that a
// joiner is not warmed up again. Weight decay is for tensors of two and more dimensions. One owner thread.
// Source: docs/architecture.md; arXiv 2311.08105 section 3 (clipping at 1.0).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "core/manifest.h"
#include "core/run_config.h"
#include "formats/safetensors.h"
#include "worker/train/tensor_values.h"

namespace causeway::worker {

// lr(t): linear from lr/warmup_steps to lr over the warm-up, then a cosine down to a tenth of lr at `total_steps`
// (constant where total_steps is 0, unknown, or the schedule is constant).
double LearningRate(const core::InnerConfig& config, core::Step total_steps, core::Step t);

class InnerOptimizer {
 public:
  InnerOptimizer(const core::InnerConfig& config, core::Step total_steps, const core::Manifest& manifest);

  // Takes step t. Gradients are clipped in place. DATA_LOSS names the first value that is not finite; then neither
  // parameters nor state have changed.
  absl::Status Step(core::Step t, TensorValues& gradients, TensorValues& parameters);

  // To and from a checkpoint, beside the parameters.
  void AppendState(std::vector<formats::TensorData>& tensors, std::map<std::string, std::string>& metadata) const;
  absl::Status LoadState(const formats::SafetensorsFile& file);

 private:
  absl::Status Clip(core::Step t, TensorValues& gradients) const;

  core::InnerConfig config_;
  core::Step total_steps_;
  core::Manifest manifest_;
  int64_t steps_taken_ = 0;
  std::optional<TensorValues> first_moments_;  // AdamW's only
  std::optional<TensorValues> second_moments_;
};

// DATA_LOSS where a value is not finite: names tensor, value, index and step.
absl::Status CheckFinite(const core::TensorSpec& spec, std::span<const float> gradient, core::Step t);

}  // namespace causeway::worker
