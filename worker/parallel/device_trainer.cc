#include "worker/parallel/device_trainer.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/check.h"
#include "core/clock.h"
#include "core/model_manifest.h"
#include "offload/calibration.h"
#include "worker/model/llama_block.h"
#include "worker/optimizer/inner_optimizer.h"
#include "worker/optimizer/trainer_file.h"
#include "worker/parallel/device_evaluator.h"

namespace causeway::worker {

namespace {

offload::Bandwidths BandwidthsOf(int64_t parameters, ComputeBackend& backend, const std::string& calibration_path) {
  core::ThreadTeam team(UpdateThreads(parameters));
  const auto calibrated = offload::Calibrate(parameters, team, &backend.device(), calibration_path);
  if (calibrated.ok()) return calibrated->bandwidths;
  spdlog::warn("bandwidths could not be measured: {}", calibrated.status().ToString());
  return {};
}

void Log(const DeviceSettings& settings, AttentionKind attention, const Residency& residency, const GpuLlama& llama,
         const DeviceOptimizer& optimizer, offload::Device& device) {
  spdlog::info("trains on {}: {}, {}", device.name(), optimizer.state().arena().Description(),
               llama.arena().Description());
  spdlog::info("computes in {}; attention: {}; recomputes: {}",
               settings.type == ValueType::kFloat32 ? "float32" : "bfloat16", AttentionKindName(attention),
               RecomputeName(residency.recompute));
  const double share = static_cast<double>(residency.resident) / static_cast<double>(optimizer.state().count());
  const offload::SubgroupPlan& plan = residency.plan;
  spdlog::info("optimizer state: {:.0f} % on the device{} ({})", 100 * share,
               residency.hosted() == 0
                   ? ""
                   : absl::StrFormat(", of the others in %d subgroups k %s, predicted %.3g ms an update",
                                     plan.num_subgroups(), core::InterleaveName(plan.k), 1e3 * plan.predicted_s),
               residency.reason);
}

// The optimizer's state, and the algorithms that the device has chosen for its products.
class KeptState final : public OptimizerState {
 public:
  KeptState(OptimizerState* optimizer, ComputeBackend* backend) : optimizer_(optimizer), backend_(backend) {}

  absl::Status AppendState(std::vector<formats::TensorData>& tensors,
                           std::map<std::string, std::string>& metadata) override {
    metadata.merge(backend_->product_choices());
    return optimizer_->AppendState(tensors, metadata);
  }
  void Saved() override { optimizer_->Saved(); }
  absl::Status LoadState(const formats::SafetensorsFile& file) override {
    backend_->SetProductChoices(file.metadata());
    return optimizer_->LoadState(file);
  }

 private:
  OptimizerState* const optimizer_;
  ComputeBackend* const backend_;
};

// Names settings that would need less of the device's memory.
absl::Status WithAdvice(const absl::Status& status) {
  if (!absl::IsResourceExhausted(status) || absl::StartsWith(status.message(), kNoHostMemory)) return status;
  return absl::Status(status.code(), absl::StrCat(status.message(), "; less is needed with --recompute=block, with ",
                                                  "--offload_k=cpu, and with more inner.micro_batches"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Trainer>> DeviceTrainer::Make(const core::RunConfig& config, const core::SiteId& site,
                                                             const TrainerFiles& files, const DeviceSettings& settings,
                                                             std::unique_ptr<ComputeBackend> backend,
                                                             std::unique_ptr<Collectives> collectives) {
  ASSIGN_OR_RETURN(LlamaData data, LlamaData::Open(config, site, files));
  const core::Manifest manifest = core::LlamaManifest(config.llama);
  TensorValues values(manifest);
  Parts parts{
      .backend = std::move(backend), .pool = {}, .collectives = std::move(collectives), .optimizer = {}, .llama = {}};
  parts.pool = std::make_unique<offload::PinnedPool>(&parts.backend->device());
  RETURN_IF_ERROR(data.Initialize(manifest, values));
  return MakeOf(config, files, settings, std::move(data), std::move(values), std::move(parts));
}

absl::StatusOr<std::unique_ptr<Trainer>> DeviceTrainer::Again(std::unique_ptr<DeviceTrainer> before,
                                                              const core::RunConfig& config, const TrainerFiles& files,
                                                              const DeviceSettings& settings) {
  Parts parts{.backend = std::move(before->parts_.backend),
              .pool = std::move(before->parts_.pool),
              .collectives = std::move(before->parts_.collectives),
              .optimizer = {},
              .llama = {}};
  before->ahead_.Forget();  // it reads the data
  LlamaData data = std::move(before->data_);
  TensorValues values = std::move(before->host_);
  before.reset();  // its memory on the device, and what it has of the pool
  return MakeOf(config, files, settings, std::move(data), std::move(values), std::move(parts));
}

absl::StatusOr<std::unique_ptr<Trainer>> DeviceTrainer::MakeOf(const core::RunConfig& config, const TrainerFiles& files,
                                                               const DeviceSettings& settings, LlamaData data,
                                                               TensorValues values, Parts parts) {
  const core::Manifest manifest = core::LlamaManifest(config.llama);
  ComputeBackend* const device = parts.backend.get();
  GpuLlama::Options options{.batch_rows = data.rows() / config.inner.micro_batches,
                            .sequence = config.sequence_length(),
                            .type = settings.type};
  const AttentionShape shape = LlamaShape(config.llama, options.batch_rows, options.sequence).attention;
  ASSIGN_OR_RETURN(options.attention, device->MakeAttention(shape, settings.type));
  const int64_t parameters = core::FlatOffsets(manifest).back();
  ASSIGN_OR_RETURN(
      const Residency residency,
      ChooseResidency(config,
                      {.parameters = parameters,
                       .type = settings.type,
                       .free_bytes = device->device().free_bytes(),
                       .recompute = settings.recompute,
                       .evaluation_bytes = config.eval.every_rounds > 0 && data.held_out().corpus != nullptr
                                               ? DeviceEvaluator::Bytes(parameters, settings.type)
                                               : 0,
                       .model_bytes =
                           [&](Recompute recompute, int64_t room_bytes) {
                             options.recompute = recompute;
                             options.room_bytes = room_bytes;
                             return GpuLlama::Bytes(config.llama, options, device);
                           },
                       .bandwidths = [&] { return BandwidthsOf(parameters, *device, files.calibration_path); }}));
  options.recompute = residency.recompute;
  options.room_bytes =
      residency.hosted() == 0 ? 0 : static_cast<int64_t>(offload::InterleavedUpdate::SetBytes(residency.plan));
  auto llama = GpuLlama::Make(config.llama, options, device);
  if (!llama.ok()) return WithAdvice(llama.status());
  parts.llama = *std::move(llama);
  auto optimizer = DeviceOptimizer::Make(config,
                                         {.manifest = manifest,
                                          .type = settings.type,
                                          .residency = residency,
                                          .rooms = parts.llama->rooms(),
                                          .pool = parts.pool.get(),
                                          .overlaps = settings.overlaps},
                                         device);
  if (!optimizer.ok()) return WithAdvice(optimizer.status());
  parts.optimizer = *std::move(optimizer);
  Log(settings, options.attention->kind(), residency, *parts.llama, *parts.optimizer, device->device());
  TrainerRanks ranks = files.ranks;
  ranks.device_values = parts.collectives.get();
  std::unique_ptr<DeviceTrainer> trainer(
      new DeviceTrainer(config, ranks, settings, std::move(data), std::move(values), std::move(parts)));
  RETURN_IF_ERROR(trainer->SetParameters());
  return trainer;
}

absl::Status DeviceTrainer::SetParameters() { return state_->WriteParameters(host_.Flat()); }

DeviceTrainer::DeviceTrainer(const core::RunConfig& config, const TrainerRanks& ranks, const DeviceSettings& settings,
                             LlamaData data, TensorValues values, Parts parts)
    : parts_(std::move(parts)),
      backend_(parts_.backend.get()),
      optimizer_(parts_.optimizer.get()),
      llama_(parts_.llama.get()),
      data_(std::move(data)),
      ranks_(ranks),
      buckets_(ranks.gradients(), ranks.timeout(), settings.bucket_bytes),
      manifest_(core::LlamaManifest(config.llama)),
      state_(&optimizer_->state()),
      store_(manifest_, state_, backend_,
             {.way = settings.encode, .memory = config.sync.device_memory, .residuals = config.codec.feedback_up > 0}),
      host_(std::move(values)),
      type_(settings.type),
      ahead_([this](core::Step t) { return data_.BatchAt(t); }, config.inner.micro_batches),
      micro_batches_(config.inner.micro_batches) {}

std::span<float> DeviceTrainer::tensor(int i) {
  CHECK(state_->ReadParameters(state_->First(i), host_[i]).ok());
  return host_[i];
}

absl::StatusOr<StepResult> DeviceTrainer::Step(core::Step t) {
  const core::Clock::TimePoint begin = core::SystemClock().Now();
  ASSIGN_OR_RETURN(const std::vector<PreparedBatch> batches, ahead_.Take(t));
  float* const gradients = state_->gradients();
  backend_->Launch(offload::Queue::kCompute, FillKernel<float>{gradients, state_->count(), 0});
  const GpuLlama::OnFinal on_final = [this](int64_t first) {
    if (state_->hosted() != nullptr) state_->hosted()->GradientsQueued(first);
  };
  for (int64_t i = 0; i < micro_batches_; ++i) {
    RETURN_IF_ERROR(llama_->Begin(batches[static_cast<size_t>(i)]));
    llama_->Forward(state_->computed());
    const bool last = i + 1 == micro_batches_;
    // The gradients of a single rank are final when its last backward is done; those of several, when they are summed.
    llama_->Backward(state_->computed(), gradients, ranks_.ranks().data_scale() / static_cast<float>(micro_batches_),
                     last && ranks_.world() == 1 ? on_final : nullptr, last);
  }
  RankStep mine{.tokens = micro_batches_ * std::ssize(batches.front().batch.tokens)};
  ASSIGN_OR_RETURN(mine.loss, llama_->Loss());  // known before backward is over
  if (ranks_.world() > 1) {
    buckets_.Begin({gradients, static_cast<size_t>(state_->count())});
    RETURN_IF_ERROR(llama_->AwaitGradients([&](int64_t first) { buckets_.FinalFrom(first); }));
    mine.compute_s = core::SystemClock().SecondsSince(begin);
    RETURN_IF_ERROR(RankFailure(buckets_.Finish()));
    on_final(0);
  }
  ASSIGN_OR_RETURN(mine.sum_of_squares, optimizer_->SumOfSquares(t));
  ASSIGN_OR_RETURN(const std::vector<RankStep> steps, ranks_.Share(mine));
  RETURN_IF_ERROR(optimizer_->Step(t, SharedSquares(steps)));
  return ResultOf(steps);
}

std::unique_ptr<Evaluator> DeviceTrainer::NewEvaluator() const {
  HeldOut windows = data_.held_out();
  if (windows.corpus == nullptr) return nullptr;
  return std::make_unique<DeviceEvaluator>(std::move(windows), data_.rows() / micro_batches_, type_, state_, llama_,
                                           backend_);
}

absl::StatusOr<formats::FileDigest> DeviceTrainer::Save(const std::string& path) {
  RETURN_IF_ERROR(state_->ReadParameters(0, host_.Flat()));
  KeptState kept(optimizer_, backend_);
  return SaveTrainer(path, manifest_, host_, &kept);
}

absl::Status DeviceTrainer::Load(const std::string& path) {
  KeptState kept(optimizer_, backend_);
  RETURN_IF_ERROR(LoadTrainer(path, manifest_, host_, &kept));
  return SetParameters();
}

}  // namespace causeway::worker
