#include "server/status/straggler.h"

#include <algorithm>
#include <map>
#include <utility>

namespace causeway::server {
namespace {

constexpr int kStraggleRounds = 16;  // that are looked at
constexpr int64_t kLeastStraggleMs = 10'000;
constexpr double kStraggleLast = 0.8;    // of the rounds
constexpr double kStraggleShare = 0.25;  // of the time

// The last contribution of a round, and for how long the others had been there.
struct LastArrival {
  core::SiteId site;
  int64_t waited_ms = 0;
};

std::optional<LastArrival> LastOf(const LoggedRound& round) {
  LastArrival last;
  int64_t last_ms = 0, second_ms = 0;
  int arrived = 0;
  for (const LoggedRound::Arrival& arrival : round.arrivals) {
    if (!arrival.arrived_unix_ms) continue;
    ++arrived;
    if (*arrival.arrived_unix_ms >= last_ms) {
      second_ms = std::exchange(last_ms, *arrival.arrived_unix_ms);
      last.site = arrival.site;
    } else {
      second_ms = std::max(second_ms, *arrival.arrived_unix_ms);
    }
  }
  if (arrived < 2) return std::nullopt;
  last.waited_ms = last_ms - second_ms;
  return last;
}

}  // namespace

std::optional<Straggler> FindStraggler(const StatusSnapshot& snapshot) {
  if (snapshot.mode != core::SyncMode::kSynchronous || snapshot.state != "training") return std::nullopt;
  std::map<core::SiteId, std::pair<int, int64_t>> lasts;  // rounds, and milliseconds of waiting
  int rounds = 0;
  int64_t first_ms = 0, last_ms = 0;
  for (auto round = snapshot.rounds.rbegin(); round != snapshot.rounds.rend() && rounds < kStraggleRounds; ++round) {
    if (!(*round)->decided_unix_ms) continue;
    const std::optional<LastArrival> last = LastOf(**round);
    if (!last) continue;
    ++rounds;
    ++lasts[last->site].first;
    lasts[last->site].second += last->waited_ms;
    last_ms = std::max(last_ms, *(*round)->decided_unix_ms);
    first_ms = first_ms == 0 ? last_ms : std::min(first_ms, *(*round)->decided_unix_ms);
  }
  const int64_t span_ms = last_ms - first_ms;
  if (rounds < kStraggleRounds || span_ms < kLeastStraggleMs) return std::nullopt;
  for (const auto& [site, last] : lasts) {
    const auto fragments = static_cast<double>(std::max<size_t>(1, snapshot.fragments.size()));
    const double share = static_cast<double>(last.second) / static_cast<double>(span_ms) / fragments;
    if (last.first < kStraggleLast * rounds || share < kStraggleShare) continue;
    return Straggler{.site = site, .last = last.first, .rounds = rounds, .share = share};
  }
  return std::nullopt;
}

}  // namespace causeway::server
