#include "worker/parallel/device_evaluator.h"

#include "core/check.h"

namespace causeway::worker {

DeviceEvaluator::DeviceEvaluator(HeldOut held_out, int64_t batch_rows, ValueType type, DeviceState* state,
                                 GpuLlama* llama, ComputeBackend* backend)
    : held_out_(std::move(held_out)),
      batch_rows_(batch_rows),
      type_(type),
      state_(state),
      llama_(llama),
      device_(&backend->device()) {
  weights_ = arena_.Add("evaluation", Bytes(state->count(), type));
}

absl::StatusOr<double> DeviceEvaluator::Loss(const Tensors& weights) {
  if (!allocated_) {
    RETURN_IF_ERROR(arena_.Allocate(*device_));
    allocated_ = true;
  }
  RETURN_IF_ERROR(state_->Await());  // an update may lie where activations do
  char* const to = arena_.At<char>(weights_);
  for (size_t i = 0; i < weights.size(); ++i) {
    RETURN_IF_ERROR(
        state_->copies().ToDevice(weights[i], to + state_->First(static_cast<int>(i)) * BytesOf(type_), type_));
  }
  int64_t first = 0;
  for (; first < held_out_.windows; first += batch_rows_) {  // beyond the last window, it again
    RETURN_IF_ERROR(llama_->Begin(PreparedBatch(held_out_.Rows(first, batch_rows_))));
    llama_->Forward(to);
    llama_->Evaluate(to);
  }
  return llama_->Loss((first - held_out_.windows) * held_out_.corpus->sequence());
}

}  // namespace causeway::worker
