#include <algorithm>
#include <unordered_map>

#include "server/status/json_writer.h"
#include "server/status/status_snapshot.h"

namespace causeway::server {
namespace {

using SiteIndex = std::unordered_map<std::string_view, size_t>;

std::string RoundJson(const LoggedRound& round, const SiteIndex& index) {
  JsonWriter json;
  json.BeginObject();
  json.Member("fragment", round.fragment);
  json.Member("version", round.version);
  json.Member("first_unix_ms", round.first_unix_ms());
  json.Key("arrived");
  json.BeginArray();
  for (const LoggedRound::Arrival& arrival : round.arrivals) {
    const auto site = index.find(arrival.site);
    if (site == index.end()) continue;
    json.BeginArray();
    json.Value(site->second);
    json.Value(arrival.begun_unix_ms);
    json.Value(arrival.arrived_unix_ms);
    json.EndArray();
  }
  json.EndArray();
  json.Member("decided_unix_ms", round.decided_unix_ms);
  json.Member("merged_unix_ms", round.merged_unix_ms);
  json.Key("taken");
  json.BeginArray();
  for (const LoggedRound::Download& download : round.downloads) {
    const auto site = index.find(download.site);
    if (site == index.end() || !download.taken_unix_ms) continue;
    json.BeginArray();
    json.Value(site->second);
    json.Value(*download.taken_unix_ms);
    json.EndArray();
  }
  json.EndArray();
  json.Member("reason", round.reason);
  json.EndObject();
  return std::move(json).Take();
}

std::string SitesJson(const StatusSnapshot& snapshot) {
  JsonWriter json;
  json.BeginArray();
  for (const SiteStatus& site : snapshot.sites) json.Value(site.name);
  json.EndArray();
  return std::move(json).Take();
}

}  // namespace

std::string TimelineJson(const StatusSnapshot& snapshot, size_t max_bytes) {
  SiteIndex index;
  for (const SiteStatus& site : snapshot.sites) index.try_emplace(site.name, index.size());
  const auto written = [&](const std::vector<std::string>& rounds) {
    JsonWriter json;
    json.BeginObject();
    json.Member("unix_ms", snapshot.unix_ms);
    json.Key("sites");
    json.Raw(SitesJson(snapshot));
    json.Key("rounds");
    json.BeginArray();
    for (const std::string& round : rounds) json.Raw(round);
    json.EndArray();
    json.EndObject();
    return std::move(json).Take();
  };
  size_t bytes = written({}).size();
  std::vector<std::string> rounds;  // newest first
  for (auto round = snapshot.rounds.rbegin(); round != snapshot.rounds.rend(); ++round) {
    std::string text = RoundJson(**round, index);
    bytes += text.size() + 1;
    if (bytes > max_bytes) break;
    rounds.push_back(std::move(text));
  }
  std::ranges::reverse(rounds);
  return written(rounds);
}

}  // namespace causeway::server
