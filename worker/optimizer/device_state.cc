#include "worker/optimizer/device_state.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/check.h"
#include "offload/calibration.h"
#include "offload/interleaved_update.h"
#include "worker/optimizer/inner_optimizer.h"

namespace causeway::worker {
namespace {

constexpr double kUsedShare = 0.85;    // of the free memory: syncs, collectives and libraries need some later
constexpr int64_t kGradientBytes = 4;  // of a parameter

// p, m and v, or p alone.
int64_t StateBytes(const core::RunConfig& config) { return core::HasMoments(config.inner.optimizer) ? 12 : 4; }

int64_t SetBytes(const core::RunConfig& config, int64_t parameters) {
  return static_cast<int64_t>(offload::InterleavedUpdate::SetBytes({.parameters = parameters,
                                                                    .subgroup = config.offload.subgroup,
                                                                    .k = config.offload.k == core::kAllOnCpu ? 0 : 1}));
}

// The first level whose model leaves `beside` bytes of the room, or none.
absl::StatusOr<std::optional<Recompute>> FirstThatFits(const ResidencyNeeds& needs, int64_t beside,
                                                       int64_t room_bytes) {
  const double room = kUsedShare * static_cast<double>(needs.free_bytes);
  for (const Recompute recompute : kAllRecompute) {
    if (needs.recompute && recompute != *needs.recompute) continue;
    ASSIGN_OR_RETURN(const int64_t model, needs.model_bytes(recompute, room_bytes));
    if (static_cast<double>(model + beside) <= room) return recompute;
  }
  return std::nullopt;
}

std::string Megabytes(double bytes) { return absl::StrFormat("%.0f MB", bytes / 1e6); }

// Whole subgroups whose state fits beside everything else.
int64_t ThatFit(const core::RunConfig& config, const ResidencyNeeds& needs, int64_t used) {
  const double left = kUsedShare * static_cast<double>(needs.free_bytes) - static_cast<double>(used);
  const double values = std::max(0.0, left / static_cast<double>(StateBytes(config)));
  const auto subgroups = static_cast<int64_t>(values / static_cast<double>(config.offload.subgroup));
  return std::min(subgroups * config.offload.subgroup, needs.parameters);
}

}  // namespace

absl::StatusOr<Residency> ChooseResidency(const core::RunConfig& config, const ResidencyNeeds& needs) {
  const core::OffloadConfig& offload = config.offload;
  const bool can_be_hosted =
      needs.type == ValueType::kBfloat16 && config.inner.optimizer == core::InnerOptimizerKind::kAdamW;
  const int64_t computed_bytes = needs.type == ValueType::kBfloat16 ? 2 : 0;  // of a parameter, beside p
  const int64_t fixed = needs.parameters * (kGradientBytes + computed_bytes) + needs.evaluation_bytes;
  Residency residency;
  if (offload.k == core::kAutoInterleave || offload.k == core::kResident || !can_be_hosted) {
    if (offload.k != core::kAutoInterleave && offload.k != core::kResident) {
      return absl::InvalidArgumentError(
          absl::StrCat("offload.k: expected auto or resident on a device that computes in float32 or has another ",
                       "optimizer than adamw, got ", core::InterleaveName(offload.k)));
    }
    const int64_t all = needs.parameters * StateBytes(config);
    ASSIGN_OR_RETURN(const std::optional<Recompute> fits, FirstThatFits(needs, fixed + all, 0));
    if (fits || offload.k == core::kResident || !can_be_hosted) {
      residency.resident = needs.parameters;
      residency.recompute = fits.value_or(needs.recompute.value_or(Recompute::kBlock));
      residency.reason = offload.k == core::kResident ? "the config says so"
                         : fits                       ? "all of it fits"
                                                      : "no other place for it";
      return residency;
    }
  }

  const int64_t set = SetBytes(config, needs.parameters);
  ASSIGN_OR_RETURN(const std::optional<Recompute> fits, FirstThatFits(needs, fixed, set));
  residency.recompute = fits.value_or(needs.recompute.value_or(Recompute::kBlock));
  if (offload.resident_share >= 0) {
    const int64_t subgroups = (needs.parameters + offload.subgroup - 1) / offload.subgroup;
    const double kept = std::round(offload.resident_share * static_cast<double>(subgroups));
    residency.resident = std::min(static_cast<int64_t>(kept) * offload.subgroup, needs.parameters);
  } else if (offload.k == core::kAutoInterleave) {
    ASSIGN_OR_RETURN(const int64_t model, needs.model_bytes(residency.recompute, set));
    residency.resident = ThatFit(config, needs, fixed + model);
  }
  const int64_t hosted = needs.parameters - residency.resident;
  if (offload.k == core::kAutoInterleave) {
    residency.plan = PlanSubgroups(offload, hosted, needs.bandwidths());
  } else {  // the prediction says little about a small state's update
    const bool matters = hosted >= offload::kLeastBeyondCaches;
    residency.plan = GivenPlan(offload, hosted, matters ? needs.bandwidths() : offload::Bandwidths());
  }
  residency.reason = residency.plan.reason;
  if (offload.k == core::kAutoInterleave) {
    absl::StrAppend(&residency.reason, "; all of it would take ",
                    Megabytes(static_cast<double>(fixed + needs.parameters * StateBytes(config))),
                    " beside the model, of ", Megabytes(static_cast<double>(needs.free_bytes)), " that are free");
  }
  return residency;
}

using offload::Queue;

absl::StatusOr<std::unique_ptr<DeviceState>> DeviceState::Make(const Setting& setting, ComputeBackend* backend) {
  std::unique_ptr<DeviceState> state(new DeviceState(setting, backend));
  RETURN_IF_ERROR(state->arena_.Allocate(backend->device()));
  for (int which = 0; which < setting.moments; ++which) {
    backend->Launch(Queue::kCompute, FillKernel<float>{state->moments(which), state->resident_, 0});
  }
  if (setting.residency.hosted() > 0) RETURN_IF_ERROR(state->Host(setting));
  return state;
}

DeviceState::DeviceState(const Setting& setting, ComputeBackend* backend)
    : type_(setting.type),
      backend_(backend),
      firsts_(core::FlatOffsets(setting.manifest)),
      count_(firsts_.back()),
      resident_(setting.residency.resident),
      more_gradients_(setting.more_gradients),
      done_(backend->device().MakeEvent()),
      copies_(&backend->device(), setting.pool, count_) {
  const auto bytes = resident_ * static_cast<int64_t>(sizeof(float));
  parameters_ = arena_.Add("parameters", bytes);
  gradients_ = arena_.Add("gradients", (count_ + more_gradients_) * static_cast<int64_t>(sizeof(float)));
  computed_ = type_ == ValueType::kFloat32 ? parameters_ : arena_.Add("parameters", count_ * BytesOf(type_));
  for (int which = 0; which < setting.moments; ++which) moments_[which] = arena_.Add("optimizer state", bytes);
}

absl::Status DeviceState::Host(const Setting& setting) {
  std::vector<offload::DecaySegment> segments;
  int64_t end = 0;
  for (const offload::DecaySegment& segment : DecaySegmentsOf(setting.manifest)) {
    end += segment.count;
    const int64_t count = std::min(segment.count, end - resident_);
    if (count > 0) segments.push_back({count, segment.decays});
  }
  const HostedState::Model model{.first = resident_,
                                 .count = count_,
                                 .gradients = gradients(),
                                 .computed = bfloat16_copy(),
                                 .rooms = setting.rooms,
                                 .early_gradients = setting.overlaps,
                                 .copy_in_pass = setting.overlaps};
  ASSIGN_OR_RETURN(hosted_, HostedState::Make(std::move(segments), setting.residency.plan, model, setting.pool,
                                              &backend_->device()));
  return absl::OkStatus();
}

absl::Status DeviceState::Await() {
  backend_->device().Record(done_, Queue::kCompute);
  backend_->device().AwaitOnHost(done_);
  return hosted_ == nullptr ? backend_->device().status() : hosted_->Finish();
}

absl::Status DeviceState::Changed(int64_t first, int64_t count) {
  const int64_t here = std::clamp<int64_t>(resident_ - first, 0, count);
  if (type_ != ValueType::kFloat32 && here > 0) {
    backend_->Launch(Queue::kCompute, CopyKernel<float, Bfloat16>{parameters() + first,
                                                                  static_cast<Bfloat16*>(computed()) + first, here});
  }
  if (here == count) return backend_->device().status();
  const std::span<const float> on_host =
      hosted_->parameters().subspan(static_cast<size_t>(first + here - resident_), static_cast<size_t>(count - here));
  return copies_.ToDevice(on_host, bfloat16_copy() + first + here, ValueType::kBfloat16);
}

DeviceState::Placed DeviceState::Parameters() const {
  return {parameters(), hosted_ == nullptr ? std::span<float>() : hosted_->parameters()};
}

DeviceState::Placed DeviceState::Moments(int which) const {
  return {moments(which), hosted_ == nullptr ? std::span<float>() : hosted_->moments(which)};
}

absl::Status DeviceState::Read(const Placed& array, int64_t first, std::span<float> to) {
  RETURN_IF_ERROR(Await());
  const int64_t here = std::clamp<int64_t>(resident_ - first, 0, std::ssize(to));
  const std::span<float> others = to.subspan(static_cast<size_t>(here));
  if (!others.empty()) std::copy_n(array.host.begin() + (first + here - resident_), others.size(), others.begin());
  return here == 0 ? absl::OkStatus() : copies_.ToHost(array.device + first, to.first(static_cast<size_t>(here)));
}

absl::Status DeviceState::Write(std::span<const float> from, const Placed& array) {
  RETURN_IF_ERROR(Await());
  std::ranges::copy(from.subspan(static_cast<size_t>(resident_)), array.host.begin());
  return copies_.ToDevice(from.first(static_cast<size_t>(resident_)), array.device, ValueType::kFloat32);
}

absl::Status DeviceState::WriteParameters(std::span<const float> from) {
  RETURN_IF_ERROR(Write(from, Parameters()));
  return Changed(0, count_);
}

}  // namespace causeway::worker
