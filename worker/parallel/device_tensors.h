// Tensors that lie whole on each rank that computes with them, on a device: as HeldTensors, with θ, gradients and the
// optimizer's state where DeviceState has them.
//
//   one stage    gradients stay in device memory, where the ranks sum them (on the fake device: the host's collectives)
//   a pipeline   gradients ─► the host: copies of a stage, a tied head, ranks of a place ─► the device
//
// own().weights are θ as ReadWeights has read it. One owner thread.
#pragma once

#include <memory>
#include <set>
#include <vector>

#include "worker/device/arena.h"
#include "worker/device/compute_backend.h"
#include "worker/device/device_encoder.h"
#include "worker/optimizer/device_state.h"
#include "worker/parallel/held_tensors.h"

namespace causeway::worker {

class DeviceTensors final : public HeldTensors {
 public:
  // `places` are the file's; `weights`: host memory for what this rank holds. Every rank calls it. State and backend
  // outlive it. `encode`: how contributions are encoded, where one stage is the whole model.
  static absl::StatusOr<std::unique_ptr<ShardedTensors>> Open(const plan::PipelineFile& file, PipelinePlaces places,
                                                              const TrainerRanks& ranks, TensorValues weights,
                                                              const DeviceEncoder::Options& encode, DeviceState* state,
                                                              ComputeBackend* backend);

  void Reduce(int stage) override;  // in a pipeline only

  SquareGroups square_groups() const override;
  std::span<float> tensor(int i) override;
  absl::Status ReadWeights() override { return state_->ReadParameters(0, own().weights.Flat()); }
  absl::Status WriteWeights() override { return state_->WriteParameters(own().weights.Flat()); }
  std::unique_ptr<replica::ParameterStore> MakeStore(offload::BusSchedule* bus) override;

  void ClearGradients() override;
  void Final(int tensor) override;
  absl::Status Finish() override;
  absl::StatusOr<std::vector<double>> SumsOfSquares(const SquareGroups& groups) override;
  absl::Status CheckGradients(const SquareGroups& groups, size_t group, core::Step t) override;

 private:
  DeviceTensors(const plan::PipelineFile& file, PipelinePlaces places, const TrainerRanks& ranks, OwnTensors own,
                const DeviceEncoder::Options& encode, DeviceState* state, ComputeBackend* backend);

  absl::Status ReadGradients(int stage);  // copies gradients to the host; once a step

  const bool in_place_;  // one stage: the host has no gradients
  const DeviceEncoder::Options encode_;
  DeviceState* const state_;
  ComputeBackend* const backend_;
  const std::vector<int64_t> firsts_;  // places of the tensors in the state, and of a tied head after them
  const std::vector<int> stages_;      // this rank's stages
  std::set<int> read_;                 // stages whose gradients the host has
  absl::Status copied_;                // whether this step's gradients could be copied
  Arena sums_;                         // in place: sums of squares, by shares of the gradients
  std::vector<double> host_sums_;
};

}  // namespace causeway::worker
