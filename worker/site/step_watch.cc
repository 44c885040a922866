#include "worker/site/step_watch.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace causeway::worker {
namespace {

constexpr double kFirstStep = 10;  // times the timeout

}  // namespace

void StepWatch::SetTimeout(double timeout_s) {
  core::MutexLock lock(mutex_);
  timeout_s_ = timeout_s;
}

void StepWatch::Enter() {
  core::MutexLock lock(mutex_);
  inside_ = true;
}

void StepWatch::Return(bool stepped) {
  core::MutexLock lock(mutex_);
  inside_ = false;
  first_ = !stepped;
  since_ = clock_.Now();
}

void StepWatch::Waits(const std::string& what) {
  core::MutexLock lock(mutex_);
  waits_ = what;
  since_ = clock_.Now();
}

void StepWatch::HasRanks(const core::RankProgress& ranks) {
  core::MutexLock lock(mutex_);
  ranks_ = ranks;
}

std::string StepWatch::WhyStill() const {
  if (!ranks_.standing_still.empty()) return ranks_.standing_still;
  if (inside_ || !waits_.empty()) return "";
  const double limit_s = timeout_s_ * (first_ ? kFirstStep : 1);
  const double still_s = clock_.SecondsSince(since_);
  if (still_s <= limit_s) return "";
  return absl::StrFormat("no inner step for %.0f s, and no known wait (--rank_timeout_s)", still_s);
}

StepWatch::Say StepWatch::Look(core::RankProgress& ranks) {
  core::MutexLock lock(mutex_);
  ranks = ranks_;
  ranks.standing_still = WhyStill();
  if (ranks.standing_still.empty()) {
    silent_ = false;
    return Say::kGoesOn;
  }
  if (silent_) return Say::kNothing;
  silent_ = true;
  return Say::kStandsStill;
}

}  // namespace causeway::worker
