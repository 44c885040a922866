#include "worker/optimizer/residency.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/check.h"
#include "offload/calibration.h"
#include "offload/interleaved_update.h"

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

}  // namespace causeway::worker
