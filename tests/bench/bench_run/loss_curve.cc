#include "tests/bench/bench_run/loss_curve.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"

namespace causeway::bench {

absl::StatusOr<std::unique_ptr<LossCurve>> LossCurve::Make(const QualityOptions& options, core::Version rounds) {
  const core::RunConfig& config = options.config;
  ASSIGN_OR_RETURN(auto corpus,
                   worker::Corpus::Open(options.data_path, {config.llama.vocab_size, config.data.token_bytes},
                                        config.sequence_length(), config.eval.held_out));
  if (corpus->held_out().size() == 0) return absl::InvalidArgumentError("eval.held_out: expected more than 0, got 0");
  return std::unique_ptr<LossCurve>(new LossCurve(options, rounds, std::move(corpus)));
}

LossCurve::LossCurve(const QualityOptions& options, core::Version rounds, std::shared_ptr<const worker::Corpus> corpus)
    : rounds_(rounds),
      half_(std::max<core::Version>(1, rounds / 2)),
      first_of_tail_(std::max<core::Version>(1, rounds + 1 - options.tail_rounds)),
      every_(options.curve_rounds),
      evaluator_(options.config.llama, {std::move(corpus), options.eval_windows}, kEvalRows) {
  CHECK(rounds >= 1 && options.tail_rounds >= 1);
  points_.insert(half_);
  for (core::Version round = first_of_tail_; round <= rounds_; ++round) points_.insert(round);
  for (core::Version round = every_; every_ > 0 && round <= rounds_; round += every_) points_.insert(round);
}

void LossCurve::TakeStart(const worker::Tensors& weights, QualityResult& result) {
  result.loss_start = *evaluator_.Loss(weights);
}

void LossCurve::Take(core::Version round, const worker::Tensors& weights, QualityResult& result) {
  CHECK(points_.contains(round));
  const double loss = *evaluator_.Loss(weights);
  if (!std::isfinite(loss) && !result.diverged) {
    result.diverged = true;
    result.reason = "the held-out loss is not finite";
  }
  if (every_ > 0 && round % every_ == 0) result.curve.emplace_back(round, loss);
  if (round == half_) result.loss_half = loss;
  if (round == rounds_) result.loss = loss;
  if (round >= first_of_tail_) result.loss_tail += loss / static_cast<double>(rounds_ + 1 - first_of_tail_);
}

}  // namespace causeway::bench
