#include "worker/parallel/site_update.h"

#include <cmath>
#include <limits>
#include <string>

#include "absl/strings/str_format.h"
#include "core/check.h"

namespace causeway::worker {
namespace {

constexpr double kUpdateBytes = 7 * sizeof(float);  // of a parameter: p, m, v, g are read, p, m, v written

}  // namespace

SiteUpdate::SiteUpdate(const core::RunConfig& config, ShardedTensors& tensors, InnerOptimizer& optimizer,
                       const TrainerRanks& ranks)
    : tensors_(tensors),
      steps_(ranks),
      optimizer_(optimizer),
      onebit_(optimizer.onebit()),
      clips_(config.inner.clip > 0),
      squares_(tensors.square_groups()),
      all_reduce_bytes_(2.0 * (ranks.world() - 1) / ranks.world() *
                        static_cast<double>(tensors.own().weights.Flat().size_bytes())) {}

void SiteUpdate::Begin() {
  early_ = absl::OkStatus();
  tensors_.Begin(/*sums=*/!averages_momenta());
  if (averages_momenta()) onebit_->BeginStep();
}

void SiteUpdate::Final(int tensor) {
  tensors_.Final(tensor);
  if (!averages_momenta() || clips_ || !early_.ok()) return;
  const TensorValues& gradients = tensors_.own().gradients;
  early_ = onebit_->TakeGradients(gradients.Flat(), gradients.First(tensor), /*gradient_scale=*/1);
}

absl::StatusOr<std::vector<RankStep>> SiteUpdate::Finish(core::Step t, RankStep mine) {
  RETURN_IF_ERROR(RankFailure(tensors_.Finish()));
  return averages_momenta() ? FinishMomenta(t, mine) : FinishGradients(t, mine);
}

absl::StatusOr<double> SiteUpdate::SumOfSquares(core::Step t, const std::vector<double>& sums) const {
  const size_t groups = squares_.groups.size();
  double sum = 0;
  for (size_t i = 0; i < groups; ++i) {
    const auto& [rank, what] = squares_.groups[i];
    if (rank < 0) continue;
    const double squares = sums.size() == groups ? sums[i] : sums[static_cast<size_t>(rank) * groups + i];
    if (!std::isfinite(squares)) {
      RETURN_IF_ERROR(tensors_.CheckGradients(squares_, i, t));
      const std::string where = steps_.world() == 1 ? "" : " on " + steps_.ranks().values->NameOf(rank);
      return absl::DataLossError(absl::StrFormat("%s%s is not finite in step %d", what, where, t));
    }
    sum += squares;
  }
  return sum;
}

absl::StatusOr<std::vector<RankStep>> SiteUpdate::FinishGradients(core::Step t, RankStep mine) {
  ASSIGN_OR_RETURN(const std::vector<double> sums, tensors_.SumsOfSquares(squares_));
  std::vector<double> all(sums.size() * static_cast<size_t>(world()));
  ASSIGN_OR_RETURN(const std::vector<RankStep> steps, steps_.Share(mine, sums, all));
  ASSIGN_OR_RETURN(const double sum_of_squares, SumOfSquares(t, all));
  const core::Clock::TimePoint begin = core::SystemClock().Now();
  RETURN_IF_ERROR(optimizer_.Step(t, sum_of_squares));
  if (trace_ != nullptr) {
    trace_->Add("update", begin, {{"dram", kUpdateBytes * static_cast<double>(tensors_.own().weights.Flat().size())}});
  }
  RETURN_IF_ERROR(RankFailure(tensors_.Spread()));
  return steps;
}

absl::StatusOr<std::vector<RankStep>> SiteUpdate::FinishMomenta(core::Step t, RankStep mine) {
  RETURN_IF_ERROR(early_);
  // Gradients are each rank's own: all ranks learn of one that is not finite before it is used.
  ASSIGN_OR_RETURN(const std::vector<double> sums, tensors_.SumsOfSquares(squares_));
  const absl::StatusOr<double> squares = SumOfSquares(t, sums);
  mine.sum_of_squares = squares.ok() ? *squares : std::numeric_limits<double>::infinity();
  ASSIGN_OR_RETURN(const std::vector<RankStep> steps, steps_.Share(mine));
  RETURN_IF_ERROR(squares.status());
  double mean = 0;
  for (size_t rank = 0; rank < steps.size(); ++rank) {
    if (!std::isfinite(steps[rank].sum_of_squares)) {
      return absl::DataLossError(absl::StrFormat("%s: a gradient is not finite in step %d",
                                                 steps_.ranks().values->NameOf(static_cast<int>(rank)), t));
    }
    mean += steps[rank].sum_of_squares / static_cast<double>(steps.size());
  }
  RETURN_IF_ERROR(optimizer_.Step(t, mean));
  return steps;
}

core::RankProgress SiteUpdate::rank_progress() const {
  core::RankProgress progress = steps_.progress();
  if (onebit_ != nullptr) progress.onebit_adam = onebit_->progress();
  if (progress.onebit_adam && progress.step_bytes > 0) {
    progress.onebit_adam->compression = all_reduce_bytes_ / progress.step_bytes;
  }
  return progress;
}

}  // namespace causeway::worker
