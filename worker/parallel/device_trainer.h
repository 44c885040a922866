// A Llama trained on a device: the Trainer of a site whose worker has --device.
//
//   LlamaData ─► GpuLlama: forward, backward ─► gradients ─► (all-reduce over ranks) ─► DeviceOptimizer ─► θ
//                                       all in device memory; the host hears the loss and the norm of a step. Gradients
//                                       of inner.micro_batches add up in float32, in their order; buckets of them are
//                                       reduced while the last backward goes on
//
// Data, initial values and checkpoints are those of LlamaTrainer. One owner thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "worker/data/batches_ahead.h"
#include "worker/model/gpu_llama.h"
#include "worker/optimizer/device_optimizer.h"
#include "worker/parallel/device_store.h"
#include "worker/parallel/llama_data.h"
#include "worker/parallel/trainer.h"
#include "worker/ranks/gradient_buckets.h"
#include "worker/ranks/rank_steps.h"

namespace causeway::worker {

struct DeviceSettings {
  ValueType type = ValueType::kFloat32;  // that the model computes with
  std::optional<Recompute> recompute;    // none: the first level that fits into memory
  std::optional<EncodeWay> encode;       // of contributions; none: the fastest
  int64_t bucket_bytes = GradientBuckets::kBytes;
  bool overlaps = true;  // of the update of hosted state, as in DeviceState::Setting
};

class DeviceTrainer final : public Trainer {
 public:
  // `collectives`: of the site's ranks, in device memory; null: gradients are accessible to the host's collectives.
  // INVALID_ARGUMENT: data, a model or a setting that does not fit. RESOURCE_EXHAUSTED: device memory.
  static absl::StatusOr<std::unique_ptr<Trainer>> Make(const core::RunConfig& config, const core::SiteId& site,
                                                       const TrainerFiles& files, const DeviceSettings& settings,
                                                       std::unique_ptr<ComputeBackend> backend,
                                                       std::unique_ptr<Collectives> collectives = nullptr);

  // A trainer at its initial values, with the optimizer's state where these settings place it; device, data, values and
  // pinned memory are those of the one before, which has not been read from since it was made. To compare places.
  static absl::StatusOr<std::unique_ptr<Trainer>> Again(std::unique_ptr<DeviceTrainer> before,
                                                        const core::RunConfig& config, const TrainerFiles& files,
                                                        const DeviceSettings& settings);

  const core::Manifest& manifest() const override { return manifest_; }
  replica::ParameterStore& store() override { return store_; }
  std::span<float> tensor(int i) override;  // a copy on the host
  absl::Status initial_values() const override { return data_.initial_values(); }
  absl::StatusOr<StepResult> Step(core::Step t) override;
  std::optional<core::OffloadProgress> offload_progress() const override { return optimizer_->progress(); }
  double last_update_s() const override { return state_->hosted() == nullptr ? 0 : state_->hosted()->last_update_s(); }
  core::RankProgress rank_progress() const override { return ranks_.progress(); }
  bool stop_requested() const override { return ranks_.stop_requested(); }
  core::SiteData data() const override { return data_.facts(); }
  void SetSites(const std::vector<core::SiteId>& names) override {
    ahead_.Forget();  // its rows may go to another site
    data_.SetSites(names);
  }
  absl::StatusOr<formats::FileDigest> Save(const std::string& path) override;
  absl::Status Load(const std::string& path) override;
  std::unique_ptr<Evaluator> NewEvaluator() const override;  // on the device

 private:
  struct Parts {
    std::unique_ptr<ComputeBackend> backend;  // first: the others' memory is its
    std::unique_ptr<offload::PinnedPool> pool;
    std::unique_ptr<Collectives> collectives;  // null: none
    std::unique_ptr<DeviceOptimizer> optimizer;
    std::unique_ptr<GpuLlama> llama;
  };

  DeviceTrainer(const core::RunConfig& config, const TrainerRanks& ranks, const DeviceSettings& settings,
                LlamaData data, TensorValues values, Parts parts);

  // With values that host memory has.
  static absl::StatusOr<std::unique_ptr<Trainer>> MakeOf(const core::RunConfig& config, const TrainerFiles& files,
                                                         const DeviceSettings& settings, LlamaData data,
                                                         TensorValues values, Parts parts);

  absl::Status SetParameters();  // from host_

  Parts parts_;
  ComputeBackend* const backend_;
  DeviceOptimizer* const optimizer_;
  GpuLlama* const llama_;
  LlamaData data_;
  RankSteps ranks_;
  GradientBuckets buckets_;
  core::Manifest manifest_;
  DeviceState* const state_;
  DeviceStore store_;
  TensorValues host_;  // where θ is read to
  const ValueType type_;
  BatchesAhead ahead_;
  const int64_t micro_batches_;
};

}  // namespace causeway::worker
