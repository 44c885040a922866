// What a site tells the coordinator of itself: what the trainer, the rules and the movers know, put together. Not
// thread-safe.
#pragma once

#include <optional>
#include <vector>

#include "core/clock.h"
#include "core/membership.h"
#include "worker/site/site_rules.h"

namespace causeway::worker {

// What the training loop knows and the coordinator shows.
struct TrainingReport {
  core::Step step = 0;
  int64_t tokens = 0;  // since its process began
  double loss = 0;     // of the last step
  double tokens_per_s = 0;
  double compute_s = 0;
  std::optional<core::OffloadProgress> offload;
};

class SiteReport {
 public:
  explicit SiteReport(const core::Clock* clock) : clock_(clock) {}

  void Trained(const TrainingReport& report);
  int64_t TakeTokens() { return std::exchange(new_tokens_, 0); }  // since it was asked last
  void Evaluated(double loss, std::vector<core::Version> versions);
  // The coordinator has heard of this evaluation: each is reported once.
  void HeardEvaluation(const core::Progress& progress);
  void Holds(core::FragmentId fragment, const core::AnchorDigest& anchor) { progress_.digests[fragment] = anchor; }
  void HasResidual(double norm) { progress_.residual_norm = norm; }

  core::Progress Make(const SiteRules& rules, const core::LinkProgress& link);

 private:
  const core::Clock* clock_;
  core::Progress progress_;
  int64_t trained_tokens_ = 0;
  int64_t new_tokens_ = 0;
  int64_t entered_ = 0;  // stays; the last of them since:
  core::Clock::TimePoint entered_at_;
};

}  // namespace causeway::worker
