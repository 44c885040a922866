#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/status/status_snapshot.h"

namespace causeway::server {
namespace {

using nlohmann::json;
using SiteIndex = std::unordered_map<std::string_view, size_t>;

std::string Quoted(const std::string& text) { return json(text).dump(-1, ' ', false, json::error_handler_t::replace); }

std::string TimeOrNull(const std::optional<int64_t>& unix_ms) { return unix_ms ? absl::StrCat(*unix_ms) : "null"; }

// Written by hand: most of a timeline is numbers, and there may be 30,000 of them.
std::string RoundJson(const LoggedRound& round, const SiteIndex& index) {
  std::string text = absl::StrCat("{\"fragment\":", round.fragment, ",\"version\":", round.version,
                                  ",\"first_unix_ms\":", TimeOrNull(round.first_unix_ms()), ",\"arrived\":[");
  const char* separator = "";
  for (const LoggedRound::Arrival& arrival : round.arrivals) {
    const auto site = index.find(arrival.site);
    if (site == index.end()) continue;
    absl::StrAppend(&text, separator, "[", site->second, ",", arrival.begun_unix_ms, ",",
                    TimeOrNull(arrival.arrived_unix_ms), "]");
    separator = ",";
  }
  absl::StrAppend(&text, "],\"decided_unix_ms\":", TimeOrNull(round.decided_unix_ms),
                  ",\"merged_unix_ms\":", TimeOrNull(round.merged_unix_ms), ",\"taken\":[");
  separator = "";
  for (const LoggedRound::Download& download : round.downloads) {
    const auto site = index.find(download.site);
    if (site == index.end() || !download.taken_unix_ms) continue;
    absl::StrAppend(&text, separator, "[", site->second, ",", *download.taken_unix_ms, "]");
    separator = ",";
  }
  absl::StrAppend(&text, "],\"reason\":", Quoted(round.reason), "}");
  return text;
}

}  // namespace

std::string TimelineJson(const StatusSnapshot& snapshot, size_t max_bytes) {
  SiteIndex index;
  std::vector<std::string> names;
  for (const SiteStatus& site : snapshot.sites) {
    index[site.name] = names.size();
    names.push_back(Quoted(site.name));
  }
  const std::string head =
      absl::StrCat("{\"unix_ms\":", snapshot.unix_ms, ",\"sites\":[", absl::StrJoin(names, ","), "],\"rounds\":[");
  const std::string tail = "]}";
  size_t bytes = head.size() + tail.size();
  std::vector<std::string> rounds;  // newest first
  for (auto round = snapshot.rounds.rbegin(); round != snapshot.rounds.rend(); ++round) {
    std::string text = RoundJson(**round, index);
    bytes += text.size() + 1;
    if (bytes > max_bytes) break;
    rounds.push_back(std::move(text));
  }
  std::ranges::reverse(rounds);
  return absl::StrCat(head, absl::StrJoin(rounds, ","), tail);
}

}  // namespace causeway::server
