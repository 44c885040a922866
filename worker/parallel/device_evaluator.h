// Evaluates any values of a model on the device that trains it, between two steps: the trainer's model computes with
// them instead of its own.
//
//   W on the host ─► the type that the model computes with, in device memory of its own ─► forward, losses ─► the host
//
// One owner thread: the trainer's.
#pragma once

#include <cstdint>

#include "worker/data/evaluation.h"
#include "worker/device/arena.h"
#include "worker/model/gpu_llama.h"
#include "worker/optimizer/device_state.h"

namespace causeway::worker {

class DeviceEvaluator final : public Evaluator {
 public:
  // State, model and backend outlive it. `batch_rows`: the model's.
  DeviceEvaluator(HeldOut held_out, int64_t batch_rows, ValueType type, DeviceState* state, GpuLlama* llama,
                  ComputeBackend* backend);

  // The device memory that the first Loss takes, and that ChooseResidency has set aside.
  static int64_t Bytes(int64_t parameters, ValueType type) { return parameters * BytesOf(type); }

  bool between_steps() const override { return true; }
  absl::StatusOr<double> Loss(const Tensors& weights) override;

 private:
  const HeldOut held_out_;
  const int64_t batch_rows_;
  const ValueType type_;
  DeviceState* const state_;
  GpuLlama* const llama_;
  offload::Device* const device_;
  Arena arena_;
  Arena::Place weights_ = 0;
  bool allocated_ = false;
};

}  // namespace causeway::worker
