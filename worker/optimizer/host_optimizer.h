// The inner optimizer of values in host memory: AdamW, SGD or 1-bit Adam.
//
// AdamW's state is updated by subgroups according to a plan that is made, and logged, with the optimizer. 1-bit Adam is
// AdamW until its variance freezes; then the ranks' momenta are averaged in place of their gradients. One owner thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/thread_team.h"
#include "offload/bus_schedule.h"
#include "offload/interleaved_update.h"
#include "worker/optimizer/inner_optimizer.h"

namespace causeway::worker {

class HostOptimizer final : public InnerOptimizer {
 public:
  // `parameters` are θ, and change only in Step; they, `gradients` and `bus`, which says when θ may change, outlive
  // this object.
  HostOptimizer(const core::RunConfig& config, const core::Manifest& manifest, TensorValues& parameters,
                const TensorValues& gradients, offload::BusSchedule& bus, const std::string& calibration_path = "",
                const TrainerRanks& ranks = {});

  // The manifest's tensors are parts of the checkpoint's ones of the same name, beginning at these values; −1: none.
  void HoldParts(std::vector<int64_t> firsts) { part_firsts_ = std::move(firsts); }

  absl::Status Step(core::Step t, double sum_of_squares) override;
  std::optional<core::OffloadProgress> progress() const override;
  OnebitAdam* onebit() override { return onebit_.get(); }

  absl::Status AppendState(std::vector<formats::TensorData>& tensors,
                           std::map<std::string, std::string>& metadata) override;
  void Saved() override;
  absl::Status LoadState(const formats::SafetensorsFile& file) override;

 private:
  // The state of AdamW.
  struct AdamW {
    AdamW(const core::RunConfig& config, const core::Manifest& manifest, TensorValues& parameters,
          offload::BusSchedule& bus, const std::string& calibration_path);

    core::ThreadTeam team;
    TensorValues first_moments, second_moments;
    offload::InterleavedUpdate update;
    double measured_s = 0;  // the mean duration of recent steps
  };

  void StepSgd(double lr, float gradient_scale);

  const core::InnerConfig config_;
  const core::Manifest manifest_;
  TensorValues& parameters_;
  const TensorValues& gradients_;
  offload::BusSchedule& bus_;
  int64_t steps_taken_ = 0;
  std::vector<int64_t> part_firsts_;  // empty: tensors are whole
  std::unique_ptr<AdamW> adamw_;
  std::unique_ptr<OnebitAdam> onebit_;
};

}  // namespace causeway::worker
