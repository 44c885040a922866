#include "worker/gpu/device_optimizer.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "offload/adamw.h"
#include "worker/train/inner_optimizer.h"

namespace causeway::worker {
namespace {

using offload::Queue;

constexpr int64_t kSumShares = 256;

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceOptimizer>> DeviceOptimizer::Make(const core::RunConfig& config,
                                                                       const core::Manifest& manifest, ValueType type,
                                                                       ComputeBackend* backend) {
  if (config.inner.optimizer == core::InnerOptimizerKind::kOnebitAdam) {
    return absl::InvalidArgumentError(absl::StrCat("--device=", backend->device().name(),
                                                   ": expected inner.optimizer: adamw or sgd, which are what devices "
                                                   "have yet, got onebit_adam; use --device=cpu"));
  }
  std::unique_ptr<DeviceOptimizer> optimizer(new DeviceOptimizer(config, manifest, type, backend));
  RETURN_IF_ERROR(optimizer->arena_.Allocate(backend->device()));
  for (int which = 0; which < optimizer->num_moments(); ++which) {
    backend->Launch(Queue::kCompute, FillKernel<float>{optimizer->moments(which), optimizer->count_, 0});
  }
  return optimizer;
}

DeviceOptimizer::DeviceOptimizer(const core::RunConfig& config, const core::Manifest& manifest, ValueType type,
                                 ComputeBackend* backend)
    : config_(config.inner),
      total_steps_(config.steps),
      manifest_(manifest),
      type_(type),
      backend_(backend),
      firsts_(core::FlatOffsets(manifest)),
      count_(firsts_.back()),
      done_(backend->device().MakeEvent()),
      host_sums_(kSumShares) {
  const auto bytes = count_ * static_cast<int64_t>(sizeof(float));
  parameters_ = arena_.Add("parameters", bytes);
  gradients_ = arena_.Add("gradients", bytes);
  computed_ = type == ValueType::kFloat32 ? parameters_ : arena_.Add("parameters", count_ * BytesOf(type));
  for (int which = 0; which < num_moments(); ++which) moments_[which] = arena_.Add("optimizer state", bytes);
  sums_ = arena_.Add("optimizer state", kSumShares * static_cast<int64_t>(sizeof(double)));
}

absl::Status DeviceOptimizer::Await() {
  backend_->device().Record(done_, Queue::kCompute);
  backend_->device().AwaitOnHost(done_);
  return backend_->device().status();
}

absl::Status DeviceOptimizer::Read(const float* from, std::span<float> to) {
  backend_->device().CopyToHost(Queue::kCompute, to.data(), from, to.size_bytes());
  return Await();
}

absl::Status DeviceOptimizer::Write(std::span<const float> from, float* to) {
  backend_->device().CopyToDevice(Queue::kCompute, to, from.data(), from.size_bytes());
  return Await();
}

void DeviceOptimizer::Changed(int64_t first, int64_t count) {
  if (type_ == ValueType::kFloat32) return;
  backend_->Launch(Queue::kCompute, CopyKernel<float, Bfloat16>{parameters() + first,
                                                                static_cast<Bfloat16*>(computed()) + first, count});
}

absl::StatusOr<double> DeviceOptimizer::SumOfSquares(core::Step t) {
  double* const sums = arena_.At<double>(sums_);
  backend_->Launch(Queue::kCompute,
                   SumOfSquaresKernel{.values = gradients(), .sums = sums, .count = count_, .shares = kSumShares});
  backend_->device().CopyToHost(Queue::kCompute, host_sums_.data(), sums, kSumShares * sizeof(double));
  RETURN_IF_ERROR(Await());
  double total = 0;
  for (const double sum : host_sums_) total += sum;
  if (std::isfinite(total)) return total;
  for (size_t i = 0; i < manifest_.size(); ++i) {
    std::vector<float> gradient(manifest_[i].NumValues());
    RETURN_IF_ERROR(Read(gradients() + firsts_[i], gradient));
    RETURN_IF_ERROR(CheckFinite(manifest_[i], gradient, t));
  }
  return absl::InternalError("the sum of squares is not finite, and all gradients are");
}

void DeviceOptimizer::Step(core::Step t, double sum_of_squares) {
  ++steps_taken_;
  offload::AdamWParameters adamw{.lr = LearningRate(config_, total_steps_, t),
                                 .beta1 = config_.beta1,
                                 .beta2 = config_.beta2,
                                 .weight_decay = config_.weight_decay,
                                 .gradient_scale = ClipFactor(config_.clip, sum_of_squares)};
  for (size_t i = 0; i < manifest_.size();) {
    size_t end = i + 1;  // tensors of one rule, side by side
    while (end < manifest_.size() && Decays(manifest_[end]) == Decays(manifest_[i])) ++end;
    adamw.weight_decay = Decays(manifest_[i]) ? config_.weight_decay : 0;
    StepPart(adamw, firsts_[i], firsts_[end] - firsts_[i]);
    i = end;
  }
}

void DeviceOptimizer::StepPart(const offload::AdamWParameters& adamw, int64_t first, int64_t count) {
  if (num_moments() == 0) {
    backend_->Launch(Queue::kCompute, SgdKernel{.gradient = gradients() + first,
                                                .parameters = parameters() + first,
                                                .count = count,
                                                .minus_lr = static_cast<float>(-adamw.lr),
                                                .minus_decay = static_cast<float>(-adamw.lr * adamw.weight_decay),
                                                .gradient_scale = adamw.gradient_scale});
    return Changed(first, count);
  }
  const offload::AdamWArrays all{
      .gradient = gradients(),
      .first_moment = moments(0),
      .second_moment = moments(1),
      .parameters = parameters(),
      .bfloat16_copy = type_ == ValueType::kFloat32 ? nullptr : static_cast<uint16_t*>(computed()),
      .count = count_};
  backend_->device().AdamW(Queue::kCompute, MakeConstants(adamw, steps_taken_), all.Part(first, count));
}

absl::Status DeviceOptimizer::AppendState(std::vector<formats::TensorData>& tensors,
                                          std::map<std::string, std::string>& metadata) {
  metadata[kStepsTaken] = absl::StrCat(steps_taken_);
  if (num_moments() == 0) return absl::OkStatus();
  host_moments_.clear();
  for (int which : {0, 1}) {
    TensorValues& values = host_moments_.emplace_back(manifest_);
    RETURN_IF_ERROR(Read(moments(which), values.Flat()));
  }
  AppendMoments(manifest_, host_moments_[0], host_moments_[1], tensors);
  return absl::OkStatus();
}

absl::Status DeviceOptimizer::LoadState(const formats::SafetensorsFile& file) {
  ASSIGN_OR_RETURN(steps_taken_, ReadStepsTaken(file));
  if (num_moments() == 0) return absl::OkStatus();
  TensorValues first(manifest_), second(manifest_);
  RETURN_IF_ERROR(ReadMoments(manifest_, file, first, second));
  RETURN_IF_ERROR(Write(first.Flat(), moments(0)));
  return Write(second.Flat(), moments(1));
}

}  // namespace causeway::worker
