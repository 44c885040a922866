// Notes what each forward and backward of a stage takes of the machine, for causewayctl plan what-if (work_trace.h).
//
// One owner thread.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "worker/parallel/model_stages.h"
#include "worker/parallel/work_trace.h"

namespace causeway::worker {

class TracedStages final : public ModelStages {
 public:
  // `weights`: how many each stage has; `rows`: how many a micro-batch has. The trace outlives the object.
  TracedStages(std::unique_ptr<ModelStages> stages, std::vector<int64_t> weights, int64_t rows, WorkTrace* trace)
      : stages_(std::move(stages)), weights_(std::move(weights)), rows_(rows), trace_(trace) {}

  int64_t message_values() const override { return stages_->message_values(); }
  absl::Status BeginStep(std::vector<PreparedBatch> parts, float scale) override {
    return stages_->BeginStep(std::move(parts), scale);
  }
  absl::Status EndStep() override { return stages_->EndStep(); }
  double loss() const override { return stages_->loss(); }

  void Forward(const plan::Operation& operation, std::span<const float> input, std::span<float> output) override;
  void Backward(const plan::Operation& operation, std::span<const float> doutput, std::span<float> dinput) override;
  void BackwardInput(const plan::Operation& operation, std::span<const float> doutput,
                     std::span<float> dinput) override {
    stages_->BackwardInput(operation, doutput, dinput);
  }
  void BackwardWeight(const plan::Operation& operation) override { stages_->BackwardWeight(operation); }

 private:
  // Counts matrix products: `passes` of them over the stage's weights. Attention's are few in comparison.
  void Note(const char* what, int stage, double passes, core::Clock::TimePoint begin);

  const std::unique_ptr<ModelStages> stages_;
  const std::vector<int64_t> weights_;
  const int64_t rows_;
  WorkTrace* const trace_;
};

}  // namespace causeway::worker
