// The micro-batches of a step, shared evenly by the copies of the weights. One owner thread.
#pragma once

#include <utility>
#include <vector>

#include "plan/pipeline_schedule.h"
#include "worker/model/gpu_layers.h"

namespace causeway::worker {

class MicroBatches {
 public:
  using Key = std::pair<int, int>;  // stage, micro-batch: a device has one copy of a stage

  explicit MicroBatches(const plan::PipelineSchedule& schedule)
      : count_(schedule.micro_batches), of_copy_(schedule.micro_batches_of_copy()) {}

  static Key KeyOf(const plan::Operation& operation) { return {operation.stage, operation.micro_batch}; }

  void Begin(std::vector<PreparedBatch> parts) { parts_ = std::move(parts); }
  const PreparedBatch& Of(const plan::Operation& operation) const {
    return parts_[static_cast<size_t>(operation.copy * of_copy_ + operation.micro_batch)];
  }
  int count() const { return count_; }
  int of_copy() const { return of_copy_; }

 private:
  const int count_, of_copy_;
  std::vector<PreparedBatch> parts_;
};

}  // namespace causeway::worker
