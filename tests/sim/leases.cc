#include "tests/sim/leases.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"

namespace causeway::sim {
namespace {

constexpr size_t kKept = 256;
constexpr std::chrono::milliseconds kExact(1);  // of times that are written in milliseconds
constexpr std::chrono::seconds kJournaled(2);   // at most after the lease ended, on a slow disk

int64_t Milliseconds(Clock::Duration time) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(time).count();
}

}  // namespace

void Leases::Heard(const std::string& site, Clock::TimePoint at, Clock::TimePoint came) {
  std::deque<Word>& words = heard_[site];
  words.push_back({.came = came, .heard = words.empty() ? at : std::max(words.back().heard, at)});
  if (words.size() > kKept) words.pop_front();
}

void Leases::StoodStill(Clock::TimePoint from, Clock::TimePoint to) {
  Died(from);
  stalls_.emplace_back(from, to);
}

void Leases::Died(Clock::TimePoint at) {
  if (!stalls_.empty()) stalls_.back().second = std::min(stalls_.back().second, at);
}

std::string Leases::Ended(const std::string& site, Clock::TimePoint at) const {
  const auto known = heard_.find(site);
  if (known == heard_.end()) return "";
  const std::deque<Word>& words = known->second;
  const auto after =
      std::ranges::upper_bound(words, at - kJournaled, {}, &Word::came);  // it may not know of later ones
  if (after == words.begin()) return "";
  const Clock::TimePoint heard = std::prev(after)->heard;
  Clock::Duration ran = at - heard;
  for (const auto& [from, to] : stalls_) {
    if (to - from <= lease_ / 4) continue;  // too short to be noticed
    ran -= std::max(Clock::Duration::zero(), std::min(to, at) - std::max(from, heard));
  }
  if (ran + kExact >= lease_) return "";
  return absl::StrCat("the lease of ", site, " ended when the coordinator had run for ", Milliseconds(ran), " of ",
                      Milliseconds(lease_), " ms without a word of it");
}

}  // namespace causeway::sim
