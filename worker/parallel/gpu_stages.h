// The stages of a Llama on a device: a site's rank with the whole model, or a device of a pipeline.
//
//   F, I, W, B on the device, over the parameters and gradients of DeviceState ◄── messages through the host ──►
//
// Operations of a pipeline are waited for, because they are timed and have messages; those of a whole model are queued
// one behind the other, and the host waits for the loss. One owner thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "worker/device/compute_backend.h"
#include "worker/model/gpu_llama.h"
#include "worker/optimizer/device_state.h"
#include "worker/parallel/micro_batches.h"
#include "worker/parallel/model_stages.h"
#include "worker/parallel/stage_models.h"

namespace causeway::worker {

// Messages of a pipeline's stages in transit between the host and a device.
//
// Values that the type can represent keep their bits in both directions. Nothing happens for an empty message. One
// owner thread.
class StageMessages {
 public:
  StageMessages(ValueType type, ComputeBackend* backend)
      : type_(type), backend_(backend), done_(backend->device().MakeEvent()) {}

  void Upload(std::span<const float> message, void* to);  // queued; the next one only after Await
  void Download(const void* from, std::span<float> message);
  void Await();  // waits for all queued work

 private:
  const ValueType type_;
  ComputeBackend* const backend_;
  offload::Device::Event done_;
  std::vector<uint16_t> staged_;  // bfloat16 values
};

class GpuStages final : public ModelStages {
 public:
  // `ranks`: how many the site has. State and backend outlive it.
  GpuStages(const StagesRequest& request, StageModels models, ValueType type, int ranks, DeviceState* state,
            ComputeBackend* backend);

  int64_t message_values() const override { return message_values_; }
  bool sorts_rows() const override { return true; }
  absl::Status BeginStep(std::vector<PreparedBatch> parts, float scale) override;
  absl::Status EndStep() override;
  double loss() const override { return loss_; }
  std::unique_ptr<Evaluator> NewEvaluator(const HeldOut& held_out) const override;

  void Forward(const plan::Operation& operation, std::span<const float> input, std::span<float> output) override;
  void Backward(const plan::Operation& operation, std::span<const float> doutput, std::span<float> dinput) override;
  void BackwardInput(const plan::Operation& operation, std::span<const float> doutput,
                     std::span<float> dinput) override;
  void BackwardWeight(const plan::Operation& operation) override;

 private:
  GpuLlama& InFlight(const plan::Operation& operation) const { return *in_flight_.at(MicroBatches::KeyOf(operation)); }
  void End(const plan::Operation& operation);
  void Computed() {
    if (waits_) messages_.Await();
  }

  DeviceState* const state_;
  ComputeBackend* const backend_;
  const StageModels models_;
  const bool whole_, waits_;
  const int64_t message_values_;
  // Gradients of one rank are final in the order of the queue; those of several are handed over when they are done.
  const LlamaStage::OnFinal on_queued_, on_done_;
  StageMessages messages_;
  MicroBatches batches_;
  std::map<int, std::vector<GpuLlama*>> idle_;  // by stage
  std::map<MicroBatches::Key, GpuLlama*> in_flight_;
  GpuLlama* last_ = nullptr;         // the model of the step's last backward
  std::map<GpuLlama*, int> losses_;  // micro-batches whose loss each has from this step
  absl::Status begun_;               // the first error of a micro-batch's Begin
  float scale_ = 1;
  double loss_ = 0;
};

}  // namespace causeway::worker
