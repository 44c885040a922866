#include "worker/sync/sync_delay.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"

namespace causeway::worker {
namespace {

constexpr size_t kKeptLatencies = 3;
constexpr double kMargin = 1.1;
constexpr double kNewestWeight = 0.05;  // of a step's time: 20 steps follow a change

}  // namespace

void SyncDelay::Stepped(double seconds) {
  step_s_ = step_s_ == 0 ? seconds : step_s_ + kNewestWeight * (seconds - step_s_);
}

void SyncDelay::Arrived(core::FragmentId fragment, double latency_s) {
  std::deque<double>& latencies = latencies_[fragment];
  latencies.push_back(latency_s);
  if (latencies.size() > kKeptLatencies) latencies.pop_front();
}

SyncDelay::Choice SyncDelay::Choose(core::FragmentId fragment) const {
  const core::Step most = sync_every_ - 1;
  if (most < 1) return {most, "an update is needed at the step that it is sent in (sync_every 1)"};
  double longest = 0;
  const auto own = latencies_.find(fragment);
  for (const auto& [id, latencies] : latencies_) {
    if (own == latencies_.end() || id == fragment) longest = std::max(longest, *std::ranges::max_element(latencies));
  }
  if (longest == 0 || step_s_ == 0) return {most, "nothing is measured yet: the longest there is"};
  const double steps = std::ceil(kMargin * longest / step_s_) + 1;
  const std::string measured = absl::StrFormat("updates take %.0f ms, steps %.1f ms", longest * 1e3, step_s_ * 1e3);
  if (steps > static_cast<double>(most)) return {most, measured + ": the longest there is"};
  return {static_cast<core::Step>(steps), measured};
}

}  // namespace causeway::worker
