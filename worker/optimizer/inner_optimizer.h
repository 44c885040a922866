// The inner optimizer of a site, wherever its state lies: schedule, clipping and one step over all values.
//
//   gradients ─► Σ g² of the site ─► clip: a factor ─► AdamW (offload/) or SGD at lr(t) ─► θ
//
//   HostOptimizer     the state in host memory       DeviceOptimizer     on a device, or partly on its host
//
// AdamW's state (m, v) starts at zero, stays in the site and is never reset by a sync. The bias correction counts the
// steps that this process took, because that is how old m and v are; the learning rate follows the run's step t, so
// that a joiner is not warmed up again. Weight decay is for tensors of two and more dimensions. One owner thread.
// Source: docs/trainer.md; arXiv 2311.08105 section 3 (clipping at 1.0).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/ids.h"
#include "core/manifest.h"
#include "core/membership.h"
#include "core/progress.h"
#include "core/run_config.h"
#include "formats/safetensors.h"
#include "offload/adamw.h"
#include "worker/model/tensor_values.h"
#include "worker/optimizer/onebit_adam.h"
#include "worker/optimizer/trainer_file.h"

namespace causeway::worker {

// The learning rate of a site's inner steps: over the run's steps or, with run.tokens, over the tokens of all its
// sites.
//
//   lr ┤    ╭─╮            linear from lr / warmup to lr over the warm-up, then a cosine down to lr / 10 at the end;
//      │   ╱   ╲           constant where the end is open or the schedule is constant
//      │  ╱     ╲__
//      └─┴──────────┴──►   place: step t of run.steps, or tokens of run.tokens, of which all awaited sites take
//                          RunConfig::TokensOfAStep in what counts as a step
//
// In quorum mode sites differ in speed: by steps, each would be at another learning rate at the same time. One owner
// thread. Source: docs/trainer.md.
// The learning rate at `place` of `end`, in steps, whole or not; end 0: open.
double LearningRate(const core::InnerConfig& config, double end, double place);

class RateSchedule {
 public:
  explicit RateSchedule(const core::RunConfig& config) { Change(config); }

  void Change(const core::RunConfig& config);  // takes effect with the next step
  void MoveTo(int64_t run_tokens) { run_tokens_ = run_tokens; }

  double At(core::Step t) const;  // the rate of step t, which counts where run.tokens is not set

 private:
  core::InnerConfig inner_;
  core::Step steps_ = 0;
  double tokens_ = 0;          // the run's tokens; 0: the schedule counts steps
  double tokens_of_step_ = 1;  // tokens that all awaited sites take in a step
  int64_t run_tokens_ = 0;
};

class InnerOptimizer : public OptimizerState {
 public:
  explicit InnerOptimizer(const core::RunConfig& config) : rate_(config) {}

  RateSchedule& rate() { return rate_; }

  // Takes step t with the gradients given at construction, whose ‖g‖² is `sum_of_squares`: the ranks' mean, or this
  // rank's own where momenta are averaged.
  virtual absl::Status Step(core::Step t, double sum_of_squares) = 0;

  virtual std::optional<core::OffloadProgress> progress() const = 0;  // none without state
  // The last update of state that a device's host keeps, whose end is known by now, in seconds; 0: none.
  virtual double last_update_s() const { return 0; }

  virtual OnebitAdam* onebit() { return nullptr; }  // null: it never averages momenta

  // Every rank calls it before rank 0 appends the state to a checkpoint.
  absl::Status Gather() { return onebit() == nullptr ? absl::OkStatus() : onebit()->Gather(); }

 private:
  RateSchedule rate_;
};

std::vector<offload::DecaySegment> DecaySegmentsOf(const core::Manifest& manifest);
bool Decays(const core::TensorSpec& spec);             // weight decay is for tensors of two and more dimensions
float ClipFactor(double clip, double sum_of_squares);  // for gradients with this ‖g‖²; clip 0: 1

inline constexpr char kStepsTaken[] = "steps_taken";  // the key in a checkpoint's metadata
absl::StatusOr<int64_t> ReadStepsTaken(const formats::SafetensorsFile& file);
void AppendMoments(const core::Manifest& manifest, const TensorValues& first, const TensorValues& second,
                   std::vector<formats::TensorData>& tensors);
absl::Status ReadMoments(const core::Manifest& manifest, const formats::SafetensorsFile& file, TensorValues& first,
                         TensorValues& second, const std::vector<int64_t>& part_firsts = {});

// Σ g² of each tensor's gradient: finite exactly if all values are.
std::vector<double> SquaresOf(const TensorValues& gradients);

// DATA_LOSS where a value is not finite: names tensor, value, index and step.
absl::Status CheckFinite(const core::TensorSpec& spec, std::span<const float> gradient, core::Step t);

}  // namespace causeway::worker
