#include "worker/optimizer/onebit_adam.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/check.h"
#include "core/multiversion.h"
#include "offload/adamw.h"

namespace causeway::worker {
namespace {

constexpr char kFrozenAt[] = "onebit_frozen_at";
constexpr char kRatio[] = "onebit_ratio";
constexpr char kNorms[] = "onebit.variance_norms";
constexpr char kOwned[] = "onebit.owned_residual";
std::string ResidualName(int64_t rank) { return absl::StrCat("onebit.residual.", rank); }

absl::StatusOr<std::vector<float>> ReadAll(const formats::SafetensorsFile& file, const std::string& name) {
  const formats::SafetensorsFile::Entry* const entry = file.Find(name);
  if (entry == nullptr) return absl::DataLossError(absl::StrCat(file.path(), ": has no ", name));
  std::vector<float> values(static_cast<size_t>(entry->bytes) / sizeof(float));
  RETURN_IF_ERROR(file.Read(name, values));
  return values;
}

// The interval for logging a variance that does not settle, in spans of Δ steps.
constexpr int64_t kSaidEvery = 2;

}  // namespace

CAUSEWAY_MULTIVERSION
double SumInLanes(std::span<const float> second_moment) {
  constexpr size_t kLanes = 16;
  double lanes[kLanes] = {};
  const float* const v = second_moment.data();
  size_t i = 0;
  for (; i + kLanes <= second_moment.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += std::fabs(v[i + lane]);
  }
  for (; i < second_moment.size(); ++i) lanes[i % kLanes] += std::fabs(v[i]);
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

VarianceFreeze::VarianceFreeze(const core::InnerConfig& config)
    : automatic_(config.onebit.freeze_at == core::kAutoFreeze),
      given_(config.onebit.freeze_at),
      beta2_(config.beta2),
      delta_(std::max<int64_t>(1, std::llround(1 / (1 - config.beta2)))) {}

void VarianceFreeze::Note(int64_t taken, bool rate_is_warm, double norm) {
  if (frozen()) return;
  if (!automatic_) {
    if (taken >= given_) frozen_at_ = taken;
    return;
  }
  if (taken < delta_) return;
  norms_.push_back(static_cast<float>(norm / (1 - std::pow(beta2_, static_cast<double>(taken)))));
  if (std::ssize(norms_) <= delta_) return;
  ratio_ = static_cast<double>(norms_.back()) / static_cast<double>(norms_.front());
  norms_.pop_front();
  if (!rate_is_warm || !(ratio_ >= kSettled && ratio_ <= 1 / kSettled)) return;
  frozen_at_ = taken;
  norms_.clear();
}

void VarianceFreeze::Restore(int64_t frozen_at, double ratio, std::span<const float> norms) {
  frozen_at_ = frozen_at;
  ratio_ = ratio;
  norms_.assign(norms.begin(), norms.end());
}

OnebitAdam::OnebitAdam(const core::InnerConfig& config, const core::Manifest& manifest, const TrainerRanks& ranks,
                       std::span<float> first_moment, std::span<const float> second_moment)
    : config_(config),
      ranks_(ranks),
      first_moment_(first_moment),
      second_moment_(second_moment),
      freeze_(config),
      exchange_(manifest, ranks, second_moment) {
  if (ranks_.rank() > 0) return;
  const std::string when = config.onebit.freeze_at == core::kAutoFreeze
                               ? absl::StrCat("once its norm has settled over ", freeze_.delta(), " steps")
                               : absl::StrCat("after step ", config.onebit.freeze_at);
  spdlog::info(
      "1-bit Adam: warm-up; the variance is frozen {}{}", when,
      ranks_.world() > 1 ? "" : ". The site has one rank: it is Adam with a frozen variance, and nothing is saved");
}

void OnebitAdam::NoteWarmupStep(int64_t taken, core::Step t) {
  const double norm = freeze_.needs_norm() ? SumInLanes(second_moment_) : 0;
  freeze_.Note(taken, t > config_.warmup_steps, norm);
  if (ranks_.rank() > 0) return;
  if (freeze_.frozen()) {
    const std::string ratio = freeze_.ratio() > 0 ? absl::StrCat(", its norm over that of ", freeze_.delta(),
                                                                 " steps before ", freeze_.ratio())
                                                  : "";
    spdlog::info("1-bit Adam: variance frozen after step {}{}; momenta are averaged at 1 bit from now on", t, ratio);
  } else if (freeze_.ratio() > 0 && taken % (kSaidEvery * freeze_.delta()) == 0) {
    spdlog::info(
        "1-bit Adam: still warm-up in step {}: the variance's norm over that of {} steps before is {:.3f}, and settled "
        "is {} to {:.3f}",
        t, freeze_.delta(), freeze_.ratio(), VarianceFreeze::kSettled, 1 / VarianceFreeze::kSettled);
  }
}

void OnebitAdam::BeginStep() {
  exchange_.Begin(first_moment_);
  taken_from_ = std::ssize(first_moment_);
}

absl::Status OnebitAdam::TakeGradients(std::span<const float> gradients, int64_t first, float gradient_scale) {
  if (first == taken_from_) return absl::OkStatus();
  const auto size = static_cast<size_t>(taken_from_ - first);
  const offload::AdamWConstants constants =
      offload::MakeConstants({.beta1 = config_.beta1, .gradient_scale = gradient_scale}, /*t=*/1);
  offload::MomentumStep(constants, gradients.subspan(first, size), second_moment_.subspan(first, size),
                        first_moment_.subspan(first, size));
  taken_from_ = first;
  return exchange_.Send(first);
}

absl::Status OnebitAdam::FinishStep(std::span<const float> gradients, float gradient_scale) {
  RETURN_IF_ERROR(TakeGradients(gradients, 0, gradient_scale));
  return exchange_.Finish();
}

core::OnebitProgress OnebitAdam::progress() const {
  return {.frozen_at = freeze_.frozen_at(), .ratio = freeze_.ratio()};
}

absl::Status OnebitAdam::Gather() {
  if (!frozen() || !exchange_.has_state()) return absl::OkStatus();
  ASSIGN_OR_RETURN(gathered_, exchange_.Gather());
  return absl::OkStatus();
}

void OnebitAdam::AppendState(std::vector<formats::TensorData>& tensors, std::map<std::string, std::string>& metadata) {
  metadata[kFrozenAt] = absl::StrCat(freeze_.frozen_at());
  metadata[kRatio] = absl::StrFormat("%.17g", freeze_.ratio());
  norms_ = freeze_.norms();
  tensors.push_back({kNorms, {std::ssize(norms_)}, norms_});
  if (gathered_.residuals.empty()) return;
  tensors.push_back({kOwned, {std::ssize(gathered_.owned)}, gathered_.owned});
  for (size_t rank = 0; rank < gathered_.residuals.size(); ++rank) {
    const std::vector<float>& residual = gathered_.residuals[rank];
    tensors.push_back({ResidualName(rank), {std::ssize(residual)}, residual});
  }
}

void OnebitAdam::DropGathered() { gathered_ = {}; }

absl::Status OnebitAdam::LoadState(const formats::SafetensorsFile& file) {
  int64_t frozen_at = 0;
  double ratio = 0;
  const auto read = [&](const char* key, auto parse) {
    const auto value = file.metadata().find(key);
    return value != file.metadata().end() && parse(value->second);
  };
  if (!read(kFrozenAt, [&](const std::string& text) { return absl::SimpleAtoi(text, &frozen_at); }) ||
      !read(kRatio, [&](const std::string& text) { return absl::SimpleAtod(text, &ratio); })) {
    return absl::DataLossError(absl::StrCat(file.path(), ": its metadata has no ", kFrozenAt, " and ", kRatio,
                                            ": the checkpoint is of another inner.optimizer"));
  }
  ASSIGN_OR_RETURN(const std::vector<float> norms, ReadAll(file, kNorms));
  freeze_.Restore(frozen_at, ratio, norms);
  if (ranks_.rank() == 0 && frozen()) spdlog::info("1-bit Adam: goes on with the variance of step {}", frozen_at);
  if (file.Find(kOwned) == nullptr) return absl::OkStatus();
  MomentumExchange::State state;
  ASSIGN_OR_RETURN(state.owned, ReadAll(file, kOwned));
  for (int64_t rank = 0; file.Find(ResidualName(rank)) != nullptr; ++rank) {
    ASSIGN_OR_RETURN(state.residuals.emplace_back(), ReadAll(file, ResidualName(rank)));
  }
  for (const std::vector<float>& values : state.residuals) {
    if (values.size() == first_moment_.size() && state.owned.size() == values.size()) continue;
    return absl::DataLossError(absl::StrCat(file.path(), ": expected residuals of ", first_moment_.size(),
                                            " values, got ", values.size(), " and ", state.owned.size()));
  }
  exchange_.Restore(state);
  return absl::OkStatus();
}

}  // namespace causeway::worker
