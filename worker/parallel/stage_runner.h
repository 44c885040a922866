// Computes the operations of a pipeline's device, for a model, or for a test that only waits.
//
// One thread calls it, in the order of the device's list. Spans are messages, [rows, hidden] of one micro-batch: empty
// below the first stage and above the last.
#pragma once

#include <span>

#include "plan/pipeline_schedule.h"

namespace causeway::worker {

class StageRunner {
 public:
  virtual ~StageRunner() = default;

  virtual void Forward(const plan::Operation& operation, std::span<const float> input, std::span<float> output) = 0;
  // B; then its halves, I and W.
  virtual void Backward(const plan::Operation& operation, std::span<const float> doutput, std::span<float> dinput) = 0;
  virtual void BackwardInput(const plan::Operation& operation, std::span<const float> doutput,
                             std::span<float> dinput) = 0;
  virtual void BackwardWeight(const plan::Operation& operation) = 0;
};

}  // namespace causeway::worker
