// Weights and gradients of a model on one rank of its site: what is held here, what a stage computes with, and when
// values move between ranks.
//
//   Begin ─► Gather(stage) ─► weights(), GradientsOf(stage) ◄─ F, B, I, W ─► Release(stage) ─► …
//         ─► Finish: own().gradients are the site's ─► optimizer ─► own().weights ─► Spread: to all that hold them
//
// Four versions: HeldTensors (each tensor whole wherever its stages are: data parallel, pipelines), StageShards (the
// ranks of a pipeline's place divide its tensors), LevelShards (all ranks divide all values, over the levels of their
// links), DeviceTensors (as HeldTensors, on a device). Every rank makes the same calls in the order of its program; one
// owner thread. Statuses are the ranks'.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/manifest.h"
#include "core/membership.h"
#include "core/progress.h"
#include "offload/bus_schedule.h"
#include "replica/parameter_store.h"
#include "worker/model/tensor_values.h"
#include "worker/parallel/layout.h"
#include "worker/parallel/trainer.h"

namespace causeway::worker {

// The part of ShardedTensors that the executor and the stages use.
class StageTensors {
 public:
  virtual ~StageTensors() = default;

  // Indexed as in LlamaStage; empty where there are none now. The vectors stay; G and R change what they view.
  const Tensors& weights() const { return weights_; }
  const MutableTensors& gradients() const { return gradients_; }
  // The gradients, with memory for those of a stage that has been gathered, zero at first.
  virtual const MutableTensors& GradientsOf(int /*stage*/) { return gradients_; }

  virtual absl::Status Gather(int /*stage*/) { return absl::OkStatus(); }   // G
  virtual absl::Status Release(int /*stage*/) { return absl::OkStatus(); }  // R
  virtual void Reduce(int /*stage*/) {}                                     // A

 protected:
  Tensors weights_;
  MutableTensors gradients_;
};

// ‖g‖² of the site is the sum over these groups, in their order, of each one's sum on the rank that counts it. The
// grouping of the sums of doubles is part of a setting's bits.
struct SquareGroups {
  struct Group {
    int rank = -1;     // the rank that counts it; −1: not counted
    std::string what;  // for people: "gradient of NAME"
  };
  std::vector<Group> groups;
  std::vector<int> group_of;  // the group of each own tensor
};

// The values that a rank's optimizer updates, as separate tensors: whole ones, or parts.
struct OwnTensors {
  explicit OwnTensors(core::Manifest all) : manifest(std::move(all)), weights(manifest), gradients(manifest) {}
  // Over memory of the manifest's size, which outlives the object.
  OwnTensors(core::Manifest all, std::span<float> weight_values, std::span<float> gradient_values)
      : manifest(std::move(all)), weights(manifest, weight_values), gradients(manifest, gradient_values) {}
  OwnTensors(core::Manifest all, TensorValues weight_values, TensorValues gradient_values)
      : manifest(std::move(all)), weights(std::move(weight_values)), gradients(std::move(gradient_values)) {}

  const core::Manifest manifest;
  TensorValues weights, gradients;
};

class ShardedTensors : public StageTensors {
 public:
  const core::Manifest& manifest() const { return manifest_; }  // the whole model's

  virtual OwnTensors& own() = 0;

  // ---- Which rank holds what ----
  virtual std::vector<Piece> own_pieces(int rank) const = 0;  // in the order of own()'s manifest
  virtual std::vector<Piece> pieces(int tensor) const = 0;    // as in Trainer
  virtual SquareGroups square_groups() const = 0;
  // Whether every own piece of this rank is a whole tensor.
  bool HoldsWholeTensors(int rank) const;

  // ---- θ here ----
  // Calls `fill(manifest, values)` for whole tensors, in groups, and keeps what belongs here.
  using Fill = std::function<absl::Status(const core::Manifest& manifest, TensorValues& values)>;
  virtual absl::Status Initialize(const Fill& fill) = 0;
  // Calls `use(first, values)` for each run of values [first, first + count) of a tensor that this rank holds.
  using UseRun = std::function<void(int64_t first, std::span<float> values)>;
  virtual void ForEachRun(int tensor, int64_t first, int64_t count, const UseRun& use) = 0;
  // As in Trainer: in place, or a copy of the values here with zeros for the others.
  virtual std::span<float> tensor(int i);
  // For θ on a device. ReadWeights: own().weights become θ; WriteWeights: θ becomes own().weights.
  virtual absl::Status ReadWeights() { return absl::OkStatus(); }
  virtual absl::Status WriteWeights() { return absl::OkStatus(); }
  virtual std::unique_ptr<replica::ParameterStore> MakeStore(offload::BusSchedule* bus) = 0;

  // ---- A step ----
  virtual void ClearGradients() = 0;
  // Without `sums` each rank keeps its own gradients in Finish: only where every rank holds everything.
  virtual void Begin(bool sums) = 0;
  // Gradients of this tensor and of all after it are final: only where one stage is the whole model.
  virtual void Final(int /*tensor*/) {}
  virtual absl::Status Finish() = 0;
  // After Finish: for each square group, the sum over what this rank holds of it.
  virtual absl::StatusOr<std::vector<double>> SumsOfSquares(const SquareGroups& groups);
  // DATA_LOSS names the first gradient of this square group that is not finite here.
  virtual absl::Status CheckGradients(const SquareGroups& groups, size_t group, core::Step t);
  virtual absl::Status Spread() { return absl::OkStatus(); }

  virtual int64_t sent_bytes() const = 0;  // so far, without those of the site's own collectives
  virtual std::vector<core::LevelTraffic> levels() const { return {}; }  // traffic of the last step
  virtual int64_t bytes() const = 0;  // size of weights and gradients, with those that are gathered

 protected:
  explicit ShardedTensors(core::Manifest manifest) : manifest_(std::move(manifest)) {}

 private:
  const core::Manifest manifest_;
  std::vector<float> copied_;  // the result of tensor()
};

}  // namespace causeway::worker
