// 1-bit Adam over the ranks of a site: data parallel AdamW until the variance freezes, then momenta at one bit a value.
//
//   warm-up   gradients, averaged ─► m, v ─► θ              v settled (variance_freeze.h)
//   frozen    own gradient ─► own m ─► 1 bit ─► averaged m ─► θ, by the v that stays  (momentum_exchange.h)
//
// The moments belong to the inner optimizer; this class decides their treatment. WAN traffic is unchanged. One owner
// thread, on every rank alike. Source: 1-bit Adam (arXiv 2102.02888).
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/manifest.h"
#include "core/membership.h"
#include "core/progress.h"
#include "core/run_config.h"
#include "formats/safetensors.h"
#include "worker/optimizer/momentum_exchange.h"
#include "worker/optimizer/variance_freeze.h"
#include "worker/ranks/rank_steps.h"

namespace causeway::worker {

class OnebitAdam {
 public:
  // Both moments of all values; they outlive this.
  OnebitAdam(const core::InnerConfig& config, const core::Manifest& manifest, const TrainerRanks& ranks,
             std::span<float> first_moment, std::span<const float> second_moment);

  bool frozen() const { return freeze_.frozen(); }
  int64_t frozen_at() const { return freeze_.frozen_at(); }

  // ---- Warm-up: AdamW has taken its step number `taken`, step t of the run ----
  void NoteWarmupStep(int64_t taken, core::Step t);

  // ---- Frozen ----
  void BeginStep();
  // This rank's gradients from `first` on are final, scaled as clipping requires: sends complete buckets.
  absl::Status TakeGradients(std::span<const float> gradients, int64_t first, float gradient_scale);
  // Takes the remaining gradients, too; returns when m is the average over the ranks.
  absl::Status FinishStep(std::span<const float> gradients, float gradient_scale);

  core::OnebitProgress progress() const;

  // A checkpoint: all ranks call Gather, then rank 0 takes the state, whose values stay until it drops them.
  absl::Status Gather();
  void AppendState(std::vector<formats::TensorData>& tensors, std::map<std::string, std::string>& metadata);
  void DropGathered();
  // Also works in a world of another size (MomentumExchange::Restore).
  absl::Status LoadState(const formats::SafetensorsFile& file);

 private:
  const core::InnerConfig config_;
  const TrainerRanks ranks_;
  std::span<float> first_moment_;
  std::span<const float> second_moment_;
  VarianceFreeze freeze_;
  MomentumExchange exchange_;
  int64_t taken_from_ = 0;  // gradients of this step from here on are in m
  // The file is written from these.
  std::vector<float> norms_;
  MomentumExchange::State gathered_;
};

}  // namespace causeway::worker
