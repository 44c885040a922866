#include "worker/parallel/site_update.h"

#include <cmath>
#include <limits>

#include "absl/strings/str_format.h"
#include "core/check.h"

namespace causeway::worker {
namespace {

constexpr double kUpdateBytes = 7 * sizeof(float);  // of a parameter: p, m, v, g are read, p, m, v written

}  // namespace

SiteUpdate::SiteUpdate(const core::RunConfig& config, ShardedTensors& tensors, offload::BusSchedule& bus,
                       const std::string& calibration_path, const TrainerRanks& ranks)
    : tensors_(tensors),
      steps_(ranks),
      optimizer_(config, tensors.own().manifest, tensors.own().weights, bus, calibration_path, ranks),
      squares_(tensors.square_groups()),
      all_reduce_bytes_(2.0 * (ranks.world() - 1) / ranks.world() *
                        static_cast<double>(tensors.own().weights.Flat().size_bytes())) {
  std::vector<int64_t> firsts;
  bool whole = true;
  for (const Piece& piece : tensors.own_pieces(ranks.rank())) {
    firsts.push_back(piece.tensor < 0 ? -1 : piece.first);
    whole =
        whole && piece.tensor >= 0 && piece.count == tensors.manifest()[static_cast<size_t>(piece.tensor)].NumValues();
  }
  if (!whole) optimizer_.HoldParts(std::move(firsts));
}

void SiteUpdate::Begin() {
  early_ = absl::OkStatus();
  tensors_.Begin(/*sums=*/!optimizer_.averages_momenta());
  if (optimizer_.averages_momenta()) optimizer_.BeginMomenta();
}

void SiteUpdate::Final(int tensor) {
  tensors_.Final(tensor);
  if (!optimizer_.averages_momenta() || optimizer_.clips() || !early_.ok()) return;
  early_ = optimizer_.TakeMomenta(tensors_.own().gradients, tensors_.own().gradients.First(tensor));
}

absl::StatusOr<std::vector<RankStep>> SiteUpdate::Finish(core::Step t, RankStep mine) {
  RETURN_IF_ERROR(RankFailure(tensors_.Finish()));
  return optimizer_.averages_momenta() ? FinishMomenta(t, mine) : FinishGradients(t, mine);
}

absl::StatusOr<double> SiteUpdate::SumOfSquares(core::Step t, const std::vector<double>& all) {
  double sum = 0;
  for (size_t i = 0; i < squares_.groups.size(); ++i) {
    const auto& [rank, what] = squares_.groups[i];
    if (rank < 0) continue;
    const double squares = all[static_cast<size_t>(rank) * squares_.groups.size() + i];
    if (!std::isfinite(squares)) {
      for (size_t own = 0; own < squares_.group_of.size(); ++own) {
        if (squares_.group_of[own] != static_cast<int>(i)) continue;
        RETURN_IF_ERROR(CheckFinite(tensors_.own().manifest[own], tensors_.own().gradients[static_cast<int>(own)], t));
      }
      const std::string where = steps_.world() == 1 ? "" : " on " + steps_.ranks().values->NameOf(rank);
      return absl::DataLossError(absl::StrFormat("%s%s is not finite in step %d", what, where, t));
    }
    sum += squares;
  }
  return sum;
}

absl::StatusOr<std::vector<RankStep>> SiteUpdate::FinishGradients(core::Step t, RankStep mine) {
  const std::vector<double> here = optimizer_.SquaresOf(tensors_.own().gradients);
  std::vector<double> sums(squares_.groups.size()), all(sums.size() * static_cast<size_t>(world()));
  for (size_t i = 0; i < here.size(); ++i) sums[static_cast<size_t>(squares_.group_of[i])] += here[i];
  ASSIGN_OR_RETURN(const std::vector<RankStep> steps, steps_.Share(mine, sums, all));
  ASSIGN_OR_RETURN(const double sum_of_squares, SumOfSquares(t, all));
  const core::Clock::TimePoint begin = core::SystemClock().Now();
  RETURN_IF_ERROR(optimizer_.Step(t, tensors_.own().gradients, sum_of_squares));
  if (trace_ != nullptr) {
    trace_->Add("update", begin, {{"dram", kUpdateBytes * static_cast<double>(tensors_.own().weights.Flat().size())}});
  }
  RETURN_IF_ERROR(RankFailure(tensors_.Spread()));
  return steps;
}

absl::StatusOr<std::vector<RankStep>> SiteUpdate::FinishMomenta(core::Step t, RankStep mine) {
  RETURN_IF_ERROR(early_);
  // Gradients are each rank's own: all ranks learn of one that is not finite before it is used.
  const absl::StatusOr<double> squares = optimizer_.SumOfSquares(t, tensors_.own().gradients);
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
  RETURN_IF_ERROR(optimizer_.Step(t, tensors_.own().gradients, mean));
  return steps;
}

core::RankProgress SiteUpdate::rank_progress() const {
  core::RankProgress progress = steps_.progress();
  progress.onebit_adam = optimizer_.onebit_progress();
  if (progress.onebit_adam && progress.step_bytes > 0) {
    progress.onebit_adam->compression = all_reduce_bytes_ / progress.step_bytes;
  }
  return progress;
}

}  // namespace causeway::worker
