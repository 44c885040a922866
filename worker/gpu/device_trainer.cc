#include "worker/gpu/device_trainer.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "core/check.h"
#include "core/clock.h"
#include "core/model_manifest.h"
#include "worker/train/llama_block.h"
#include "worker/train/trainer_file.h"

namespace causeway::worker {

namespace {

absl::StatusOr<std::unique_ptr<GpuLlama>> MakeLlama(const core::RunConfig& config, int64_t rows,
                                                    const DeviceSettings& settings, ComputeBackend* backend) {
  const AttentionShape shape = LlamaShape(config.llama, rows, config.sequence_length()).attention;
  ASSIGN_OR_RETURN(const std::shared_ptr<DeviceAttention> attention, backend->MakeAttention(shape, settings.type));
  absl::Status last;
  for (const Recompute recompute : kAllRecompute) {
    if (settings.recompute && recompute != *settings.recompute) continue;
    auto llama = GpuLlama::Make(config.llama,
                                {.batch_rows = rows,
                                 .sequence = config.sequence_length(),
                                 .type = settings.type,
                                 .recompute = recompute,
                                 .attention = attention},
                                backend);
    if (llama.ok()) {
      spdlog::info("computes in {}, {}; attention: {}; recomputes: {}",
                   settings.type == ValueType::kFloat32 ? "float32" : "bfloat16", (*llama)->arena().Description(),
                   AttentionKindName(attention->kind()), RecomputeName(recompute));
      return llama;
    }
    last = llama.status();
    if (!absl::IsResourceExhausted(last)) break;
  }
  return last;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Trainer>> DeviceTrainer::Make(const core::RunConfig& config, const core::SiteId& site,
                                                             const TrainerFiles& files, const DeviceSettings& settings,
                                                             std::unique_ptr<ComputeBackend> backend,
                                                             std::unique_ptr<Collectives> collectives) {
  ASSIGN_OR_RETURN(LlamaData data, LlamaData::Open(config, site, files));
  const core::Manifest manifest = core::LlamaManifest(config.llama);
  Parts parts{.backend = std::move(backend), .collectives = std::move(collectives), .optimizer = {}, .llama = {}};
  ASSIGN_OR_RETURN(parts.optimizer, DeviceOptimizer::Make(config, manifest, settings.type, parts.backend.get()));
  spdlog::info("trains on {}: {}", parts.backend->device().name(), parts.optimizer->arena().Description());
  const int64_t rows = data.rows() / config.inner.micro_batches;
  ASSIGN_OR_RETURN(parts.llama, MakeLlama(config, rows, settings, parts.backend.get()));
  TrainerRanks ranks = files.ranks;
  ranks.device_values = parts.collectives.get();
  std::unique_ptr<DeviceTrainer> trainer(
      new DeviceTrainer(config, ranks, settings.bucket_bytes, std::move(data), std::move(parts)));
  RETURN_IF_ERROR(trainer->data_.Initialize(trainer->manifest_, trainer->host_));
  RETURN_IF_ERROR(trainer->SetParameters());
  return trainer;
}

absl::Status DeviceTrainer::SetParameters() {
  RETURN_IF_ERROR(optimizer_->Write(host_.Flat(), optimizer_->parameters()));
  optimizer_->Changed(0, optimizer_->count());
  return backend_->device().status();
}

DeviceTrainer::DeviceTrainer(const core::RunConfig& config, const TrainerRanks& ranks, int64_t bucket_bytes,
                             LlamaData data, Parts parts)
    : parts_(std::move(parts)),
      backend_(parts_.backend.get()),
      optimizer_(parts_.optimizer.get()),
      llama_(parts_.llama.get()),
      data_(std::move(data)),
      parallel_(ranks, bucket_bytes),
      manifest_(core::LlamaManifest(config.llama)),
      store_(manifest_, optimizer_, backend_),
      host_(manifest_),
      micro_batches_(config.inner.micro_batches) {}

std::span<float> DeviceTrainer::tensor(int i) {
  CHECK(optimizer_->Read(optimizer_->parameters() + optimizer_->First(i), host_[i]).ok());
  return host_[i];
}

absl::StatusOr<StepResult> DeviceTrainer::Step(core::Step t) {
  const core::Clock::TimePoint begin = core::SystemClock().Now();
  ASSIGN_OR_RETURN(const Batch batch, data_.BatchAt(t));
  float* const gradients = optimizer_->gradients();
  backend_->Launch(offload::Queue::kCompute, FillKernel<float>{gradients, optimizer_->count(), 0});
  for (int64_t i = 0; i < micro_batches_; ++i) {
    llama_->Begin(Part(batch, i, micro_batches_));
    llama_->Forward(optimizer_->computed());
    llama_->Backward(optimizer_->computed(), gradients, parallel_.scale() / static_cast<float>(micro_batches_));
  }
  RankStep mine{.tokens = static_cast<int64_t>(batch.tokens.size())};
  ASSIGN_OR_RETURN(mine.loss, llama_->Loss());  // known before backward is over
  if (parallel_.world() > 1) {
    parallel_.Begin({gradients, static_cast<size_t>(optimizer_->count())});
    RETURN_IF_ERROR(llama_->AwaitGradients([&](int64_t first) { parallel_.FinalFrom(first); }));
    mine.compute_s = core::SystemClock().SecondsSince(begin);
    RETURN_IF_ERROR(parallel_.Finish());
  }
  ASSIGN_OR_RETURN(mine.sum_of_squares, optimizer_->SumOfSquares(t));
  ASSIGN_OR_RETURN(const std::vector<RankStep> steps, parallel_.Share(mine));
  optimizer_->Step(t, SharedSquares(steps));
  RETURN_IF_ERROR(backend_->device().status());
  return ResultOf(steps);
}

absl::StatusOr<formats::FileDigest> DeviceTrainer::Save(const std::string& path) {
  RETURN_IF_ERROR(optimizer_->Read(optimizer_->parameters(), host_.Flat()));
  return SaveTrainer(path, manifest_, host_, optimizer_);
}

absl::Status DeviceTrainer::Load(const std::string& path) {
  RETURN_IF_ERROR(LoadTrainer(path, manifest_, host_, optimizer_));
  return SetParameters();
}

}  // namespace causeway::worker
