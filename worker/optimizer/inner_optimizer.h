// The inner optimizer of a site: schedule, clipping and one AdamW or SGD step over all tensors.
//
//   gradients ─► all finite? ─► global norm ─► clip: a factor ─► AdamW (offload/) or SGD at lr(t) ─► θ
//
// AdamW's state (m, v) starts at zero, stays in the site and is never reset by a sync; it lies in host memory and is
// updated by subgroups according to a plan that is made, and logged, with the optimizer. The bias correction counts the
// steps that this process took, because that is how old m and v are; the learning rate follows the run's step t, so
// that a joiner is not warmed up again. Weight decay is for tensors of two and more dimensions. 1-bit Adam is AdamW
// until its variance freezes; then the ranks' momenta are averaged in place of their gradients. One owner thread.
// Source: docs/trainer.md; arXiv 2311.08105 section 3 (clipping at 1.0).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/manifest.h"
#include "core/membership.h"
#include "core/run_config.h"
#include "core/thread_team.h"
#include "formats/safetensors.h"
#include "offload/bus_schedule.h"
#include "offload/interleaved_update.h"
#include "worker/model/tensor_values.h"
#include "worker/optimizer/onebit_adam.h"
#include "worker/optimizer/trainer_file.h"

namespace causeway::worker {

// lr(t): linear from lr/warmup_steps to lr over the warm-up, then a cosine down to a tenth of lr at `total_steps`
// (constant where total_steps is 0, unknown, or the schedule is constant).
double LearningRate(const core::InnerConfig& config, core::Step total_steps, core::Step t);

class InnerOptimizer final : public OptimizerState {
 public:
  // `parameters` are θ, and change only in Step; they and `bus`, which says when they may, outlive this object.
  InnerOptimizer(const core::RunConfig& config, const core::Manifest& manifest, TensorValues& parameters,
                 offload::BusSchedule& bus, const std::string& calibration_path = "", const TrainerRanks& ranks = {});

  // The manifest's tensors are parts of the checkpoint's tensors of the same name, from these values on; −1: not there.
  void HoldParts(std::vector<int64_t> firsts) { part_firsts_ = std::move(firsts); }

  // ‖g‖² of each tensor's gradient.
  std::vector<double> SquaresOf(const TensorValues& gradients) const;
  // ‖g‖² of all, summed in the manifest's order. DATA_LOSS names the first that is not finite.
  absl::StatusOr<double> SumOfSquares(core::Step t, const TensorValues& gradients) const;

  // Takes step t with gradients of that ‖g‖²: the ranks' mean, or this rank's own where momenta are averaged.
  absl::Status Step(core::Step t, const TensorValues& gradients, double sum_of_squares);

  // ---- 1-bit Adam with a frozen variance: the next step averages momenta ----
  bool averages_momenta() const { return onebit_ != nullptr && onebit_->frozen(); }
  bool clips() const { return config_.clip > 0; }
  void BeginMomenta() { onebit_->BeginStep(); }
  // Gradients from value `first` on are final, and are not clipped: their momenta may cross before Step.
  absl::Status TakeMomenta(const TensorValues& gradients, int64_t first) {
    return onebit_->TakeGradients(gradients.Flat(), first, /*gradient_scale=*/1);
  }

  // None for SGD, which has no state.
  std::optional<core::OffloadProgress> progress() const;
  std::optional<core::OnebitProgress> onebit_progress() const;

  // To and from a checkpoint, beside the parameters. Every rank calls Gather before rank 0 appends, and Saved once it
  // has written.
  absl::Status Gather() { return onebit_ == nullptr ? absl::OkStatus() : onebit_->Gather(); }
  absl::Status AppendState(std::vector<formats::TensorData>& tensors,
                           std::map<std::string, std::string>& metadata) override;
  void Saved() override;
  absl::Status LoadState(const formats::SafetensorsFile& file) override;

 private:
  // For AdamW only.
  struct AdamW {
    AdamW(const core::RunConfig& config, const core::Manifest& manifest, TensorValues& parameters,
          offload::BusSchedule& bus, const std::string& calibration_path);

    core::ThreadTeam team;
    TensorValues first_moments, second_moments;
    offload::InterleavedUpdate update;
    double measured_s = 0;  // of a step; the mean of recent ones
  };

  void StepSgd(double lr, float gradient_scale, const TensorValues& gradients);

  core::InnerConfig config_;
  core::Step total_steps_;
  core::Manifest manifest_;
  TensorValues& parameters_;
  offload::BusSchedule& bus_;
  int64_t steps_taken_ = 0;
  std::vector<int64_t> part_firsts_;  // empty: tensors are whole
  std::unique_ptr<AdamW> adamw_;
  std::unique_ptr<OnebitAdam> onebit_;
};

// ---- Independent of where the state lies ----

std::vector<offload::DecaySegment> DecaySegmentsOf(const core::Manifest& manifest);
bool Decays(const core::TensorSpec& spec);             // weight decay is for tensors of two and more dimensions
float ClipFactor(double clip, double sum_of_squares);  // for gradients of that ‖g‖²; clip 0: 1

inline constexpr char kStepsTaken[] = "steps_taken";  // in a checkpoint's metadata
absl::StatusOr<int64_t> ReadStepsTaken(const formats::SafetensorsFile& file);
void AppendMoments(const core::Manifest& manifest, const TensorValues& first, const TensorValues& second,
                   std::vector<formats::TensorData>& tensors);
absl::Status ReadMoments(const core::Manifest& manifest, const formats::SafetensorsFile& file, TensorValues& first,
                         TensorValues& second, const std::vector<int64_t>& part_firsts = {});

// DATA_LOSS where a value is not finite: names tensor, value, index and step.
absl::Status CheckFinite(const core::TensorSpec& spec, std::span<const float> gradient, core::Step t);

}  // namespace causeway::worker
