#include "server/status/round_log.h"

#include <algorithm>
#include <unordered_map>

#include "core/check.h"
#include "core/limits.h"
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

using core::FragmentId;
using core::SiteId;
using core::Version;

auto OfSite(const SiteId& site) {
  return [&site](const auto& entry) { return entry.site == site; };
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

std::optional<int64_t> LoggedRound::first_unix_ms() const {
  std::optional<int64_t> first;
  for (const Arrival& arrival : arrivals) {
    first = first ? std::min(*first, arrival.begun_unix_ms) : arrival.begun_unix_ms;
  }
  return first;
}

LoggedRound& RoundLog::Writable(Slot& slot) {
  if (slot.handed_out) {
    slot.round = std::make_shared<LoggedRound>(*slot.round);
    slot.handed_out = false;
  }
  return *slot.round;
}

LoggedRound& RoundLog::Open(FragmentId fragment, Version version) {
  Slot& slot = open_[fragment];
  if (slot.round == nullptr || slot.round->version != version) {
    slot = {std::make_shared<LoggedRound>(LoggedRound{.fragment = fragment, .version = version}), false};
  }
  return Writable(slot);
}

RoundLog::Slot* RoundLog::Find(FragmentId fragment, Version version) {
  const auto found = std::find_if(decided_.rbegin(), decided_.rend(), [&](const Slot& slot) {
    return slot.round->fragment == fragment && slot.round->version == version;
  });
  return found == decided_.rend() ? nullptr : &*found;
}

void RoundLog::Begun(FragmentId fragment, Version version, const SiteId& site, int64_t unix_ms) {
  LoggedRound& round = Open(fragment, version);
  std::erase_if(round.arrivals, OfSite(site));  // begun anew
  round.arrivals.push_back({.site = site, .begun_unix_ms = unix_ms});
}

void RoundLog::Arrived(FragmentId fragment, Version version, const SiteId& site, int64_t begun_unix_ms,
                       int64_t unix_ms) {
  LoggedRound& round = Open(fragment, version);
  auto arrival = std::ranges::find_if(round.arrivals, OfSite(site));
  if (arrival == round.arrivals.end()) {
    arrival = round.arrivals.insert(arrival, {.site = site, .begun_unix_ms = begun_unix_ms});
  }
  arrival->arrived_unix_ms = unix_ms;
}

void RoundLog::Forget(FragmentId fragment, const SiteId& site) {
  const auto open = open_.find(fragment);
  if (open == open_.end()) return;
  std::erase_if(Writable(open->second).arrivals,
                [&](const LoggedRound::Arrival& arrival) { return arrival.site == site && !arrival.arrived_unix_ms; });
}

void RoundLog::Decided(FragmentId fragment, Version version, const std::string& reason, int64_t unix_ms) {
  LoggedRound& round = Open(fragment, version);
  round.decided_unix_ms = unix_ms;
  round.reason = reason;
  std::vector<LoggedRound::Arrival> late;
  std::erase_if(round.arrivals, [&late](const LoggedRound::Arrival& arrival) {
    if (!arrival.arrived_unix_ms) late.push_back(arrival);
    return !arrival.arrived_unix_ms;
  });
  decided_.push_back(std::move(open_.at(fragment)));
  open_.erase(fragment);
  if (!late.empty()) Open(fragment, version + 1).arrivals = std::move(late);
  if (decided_.size() > kKeptRounds) decided_.pop_front();
}

void RoundLog::Merged(FragmentId fragment, core::AnchorDigest committed, int64_t unix_ms) {
  Slot* slot = Find(fragment, committed.version);
  if (slot == nullptr) return;
  LoggedRound& round = Writable(*slot);
  round.merged_unix_ms = unix_ms;
  round.digest = committed.digest;
}

std::optional<int64_t> RoundLog::Taken(FragmentId fragment, Version version, const SiteId& site, int stripe,
                                       int stripes, int64_t begun_unix_ms, int64_t unix_ms) {
  CHECK(stripes >= 1 && stripes <= core::kMaxStripes && stripe >= 0 && stripe < stripes);
  Slot* slot = Find(fragment, version);
  if (slot == nullptr) return std::nullopt;
  LoggedRound& round = Writable(*slot);
  auto download = std::ranges::find_if(round.downloads, OfSite(site));
  if (download == round.downloads.end()) {
    download = round.downloads.insert(download, {.site = site, .begun_unix_ms = begun_unix_ms});
  }
  if (download->taken_unix_ms) return std::nullopt;  // once more, after its process was restarted
  download->begun_unix_ms = std::min(download->begun_unix_ms, begun_unix_ms);
  if (download->num_stripes != stripes) download->stripes = 0;  // it continues over another number of connections
  download->num_stripes = stripes;
  download->stripes |= uint32_t{1} << stripe;
  if (download->stripes != (uint32_t{1} << stripes) - 1) return std::nullopt;
  download->taken_unix_ms = unix_ms;
  return std::max<int64_t>(0, unix_ms - download->begun_unix_ms);  // the calendar may have jumped meanwhile
}

LoggedRounds RoundLog::rounds() {
  LoggedRounds rounds;
  rounds.reserve(decided_.size() + open_.size());
  for (Slot& slot : decided_) {
    slot.handed_out = true;
    rounds.push_back(slot.round);
  }
  for (auto& [fragment, slot] : open_) {
    slot.handed_out = true;
    rounds.push_back(slot.round);
  }
  return rounds;
}

}  // namespace causeway::server
