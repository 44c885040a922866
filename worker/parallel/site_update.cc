#include "worker/parallel/site_update.h"

#include <cmath>
#include <limits>

#include "absl/strings/str_format.h"
#include "core/check.h"

namespace causeway::worker {

SiteUpdate::SiteUpdate(const core::RunConfig& config, const core::Manifest& manifest, TensorValues& parameters,
                       offload::BusSchedule& bus, const std::string& calibration_path, const TrainerRanks& ranks)
    : parallel_(ranks),
      optimizer_(config, manifest, parameters, bus, calibration_path, ranks),
      all_reduce_bytes_(2.0 * (ranks.world() - 1) / ranks.world() *
                        static_cast<double>(parameters.Flat().size_bytes())) {}

void SiteUpdate::Begin(TensorValues& gradients) {
  gradients_ = &gradients;
  early_ = absl::OkStatus();
  if (optimizer_.averages_momenta()) {
    optimizer_.BeginMomenta();
  } else {
    parallel_.Begin(gradients.Flat());
  }
}

void SiteUpdate::FinalFrom(int tensor) {
  const int64_t first = gradients_->First(tensor);
  if (!optimizer_.averages_momenta()) return parallel_.FinalFrom(first);
  if (!optimizer_.clips() && early_.ok()) early_ = optimizer_.TakeMomenta(*gradients_, first);
}

absl::StatusOr<std::vector<RankStep>> SiteUpdate::Finish(core::Step t, RankStep mine) {
  return optimizer_.averages_momenta() ? FinishMomenta(t, mine) : FinishGradients(t, mine);
}

absl::StatusOr<std::vector<RankStep>> SiteUpdate::FinishGradients(core::Step t, RankStep mine) {
  RETURN_IF_ERROR(parallel_.Finish());
  ASSIGN_OR_RETURN(mine.sum_of_squares, optimizer_.SumOfSquares(t, *gradients_));
  ASSIGN_OR_RETURN(const std::vector<RankStep> steps, parallel_.Share(mine));
  RETURN_IF_ERROR(optimizer_.Step(t, *gradients_, SharedSquares(steps)));
  return steps;
}

absl::StatusOr<std::vector<RankStep>> SiteUpdate::FinishMomenta(core::Step t, RankStep mine) {
  RETURN_IF_ERROR(early_);
  // Gradients are each rank's own: all ranks learn of one that is not finite before it is used.
  const absl::StatusOr<double> squares = optimizer_.SumOfSquares(t, *gradients_);
  mine.sum_of_squares = squares.ok() ? *squares : std::numeric_limits<double>::infinity();
  ASSIGN_OR_RETURN(const std::vector<RankStep> steps, parallel_.Share(mine));
  RETURN_IF_ERROR(squares.status());
  double mean = 0;
  for (size_t rank = 0; rank < steps.size(); ++rank) {
    if (!std::isfinite(steps[rank].sum_of_squares)) {
      return absl::DataLossError(absl::StrFormat("%s: a gradient is not finite in step %d",
                                                 parallel_.ranks().values->NameOf(static_cast<int>(rank)), t));
    }
    mean += steps[rank].sum_of_squares / static_cast<double>(steps.size());
  }
  RETURN_IF_ERROR(optimizer_.Step(t, *gradients_, mean));
  return steps;
}

core::RankProgress SiteUpdate::rank_progress() const {
  core::RankProgress progress = parallel_.progress();
  progress.onebit_adam = optimizer_.onebit_progress();
  if (progress.onebit_adam && progress.step_bytes > 0) {
    progress.onebit_adam->compression = all_reduce_bytes_ / progress.step_bytes;
  }
  return progress;
}

}  // namespace causeway::worker
