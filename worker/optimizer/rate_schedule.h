// The learning rate of a site's inner steps: over the run's steps or, with run.tokens, over the tokens of all its
// sites.
//
//   lr ┤    ╭─╮            linear from lr / warmup to lr over the warm-up, then a cosine down to a tenth of lr at the
//   end;
//      │   ╱   ╲           constant where the end is open or the schedule is constant
//      │  ╱     ╲__
//      └─┴──────────┴──►   place: step t of run.steps, or tokens of run.tokens, of which all awaited sites take
//                          RunConfig::TokensOfAStep in what counts as a step
//
// In quorum mode sites differ in speed: by steps, each would be at another learning rate at the same time. One owner
// thread. Source: docs/trainer.md.
#pragma once

#include <cstdint>

#include "core/ids.h"
#include "core/run_config.h"

namespace causeway::worker {

// lr at `place` of `end`, in steps, whole or not; end 0: open.
double LearningRate(const core::InnerConfig& config, double end, double place);

class RateSchedule {
 public:
  explicit RateSchedule(const core::RunConfig& config) { Change(config); }

  void Change(const core::RunConfig& config);  // from the next step on
  void MoveTo(int64_t run_tokens) { run_tokens_ = run_tokens; }

  double At(core::Step t) const;  // of step t, which counts where run.tokens is not set

 private:
  core::InnerConfig inner_;
  core::Step steps_ = 0;
  double tokens_ = 0;          // of the run; 0: its steps count
  double tokens_of_step_ = 1;  // of all awaited sites
  int64_t run_tokens_ = 0;
};

}  // namespace causeway::worker
