// Held-out loss at the points of a run that all runs are compared at.
//
//   round   0 ───────── half ───────── …  n−3  n−2  n−1  n        n: all rounds; the last `tail` are averaged
//           start                                       end         and each curve_rounds, if wanted
//
// One thread.
#pragma once

#include <memory>
#include <set>

#include "tests/bench/bench_run/quality.h"
#include "worker/data/corpus.h"
#include "worker/data/evaluation.h"

namespace causeway::bench {

class LossCurve {
 public:
  // `rounds` ≥ 1. INVALID_ARGUMENT if the data cannot be read or is too small.
  static absl::StatusOr<std::unique_ptr<LossCurve>> Make(const QualityOptions& options, core::Version rounds);

  core::Version rounds() const { return rounds_; }
  // After which rounds, the last among them, Take is to be called.
  const std::set<core::Version>& points() const { return points_; }

  void TakeStart(const worker::Tensors& weights, QualityResult& result);
  // Points in the order of their rounds.
  void Take(core::Version round, const worker::Tensors& weights, QualityResult& result);

 private:
  LossCurve(const QualityOptions& options, core::Version rounds, std::shared_ptr<const worker::Corpus> corpus);

  const core::Version rounds_;
  const core::Version half_;
  const core::Version first_of_tail_;
  const core::Version every_;  // of the curve; 0: there is none
  std::set<core::Version> points_;
  worker::HostEvaluator evaluator_;
};

}  // namespace causeway::bench
