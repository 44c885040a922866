#include "server/run/shard_reports.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace causeway::server {

bool OwnReport::Note(const ShardReport& report) {
  const core::MutexLock lock(mutex_);
  if (report == noted_) return false;
  noted_ = report;
  return true;
}

void OwnReport::MakeDurable(const ShardReport& report) {
  const core::MutexLock lock(mutex_);
  durable_ = report;
}

void OwnReport::MakeNotedDurable() {
  const core::MutexLock lock(mutex_);
  durable_ = noted_;
}

void OwnReport::Show(const StatusSnapshot& snapshot) {
  v1::ShardReport shown;
  for (const FragmentStatus& fragment : snapshot.fragments) {
    v1::ShardFragment& message = *shown.add_fragments();
    message.set_fragment(fragment.id);
    message.set_version(fragment.committed.version);
    message.set_digest(fragment.committed.digest);
    message.set_state(fragment.state);
    message.set_reason(fragment.reason);
    message.mutable_contributors()->Assign(fragment.contributors.begin(), fragment.contributors.end());
  }
  for (const SiteStatus& site : snapshot.sites) {
    v1::ShardTraffic& message = *shown.add_traffic();
    message.set_site(site.name);
    message.set_up_bytes(site.up_bytes);
    message.set_down_bytes(site.down_bytes);
    message.set_up_bytes_per_s(site.up_bytes_per_s);
    message.set_down_bytes_per_s(site.down_bytes_per_s);
  }
  const core::MutexLock lock(mutex_);
  shown_ = std::move(shown);
}

v1::ShardReport OwnReport::Message() const {
  const core::MutexLock lock(mutex_);
  v1::ShardReport message = shown_;
  message.set_seeded(durable_.seeded);
  message.mutable_versions()->Assign(durable_.versions.begin(), durable_.versions.end());
  message.set_stranded(durable_.stranded);
  message.set_stranded_stay(durable_.stranded_stay);
  if (durable_.generation) message.set_generation(*durable_.generation);
  return message;
}

void ShownShards::Heard(int shard, const v1::ShardReport& report, int64_t now_ms) {
  const core::MutexLock lock(mutex_);
  shards_[shard] = {report, now_ms};
}

std::vector<AwayShard> ShownShards::Away(const core::Shard& own, int64_t began_ms, int64_t now_ms) const {
  std::vector<AwayShard> away;
  const core::MutexLock lock(mutex_);
  for (int shard = 1; own.leads() && shard < own.count; ++shard) {
    const auto found = shards_.find(shard);
    const int64_t silent_ms = now_ms - (found == shards_.end() ? began_ms : found->second.heard_ms);
    if (silent_ms > kAwayMs) away.push_back({shard, static_cast<double>(silent_ms) * 1e-3});
  }
  return away;
}

void ShownShards::AddTo(const core::FragmentMap& map, const core::Shard& own, int64_t now_ms,
                        StatusSnapshot* snapshot) const {
  const core::MutexLock lock(mutex_);
  for (int shard = 1; shard < own.count; ++shard) {
    const auto found = shards_.find(shard);
    if (found == shards_.end()) continue;
    const auto& [report, heard_ms] = found->second;
    for (const v1::ShardTraffic& traffic : report.traffic()) {
      const auto site = std::ranges::find(snapshot->sites, traffic.site(), &SiteStatus::name);
      if (site == snapshot->sites.end()) continue;
      site->up_bytes += traffic.up_bytes();
      site->down_bytes += traffic.down_bytes();
      site->up_bytes_per_s += traffic.up_bytes_per_s();
      site->down_bytes_per_s += traffic.down_bytes_per_s();
    }
    const bool away = now_ms - heard_ms > kAwayMs;
    for (const v1::ShardFragment& fragment : report.fragments()) {
      if (fragment.fragment() >= map.num_fragments() || own.OwnerOf(fragment.fragment()) != shard) continue;
      FragmentStatus& status = snapshot->fragments.emplace_back();
      status.id = fragment.fragment();
      status.parameters = map.fragment(status.id).parameters;
      status.committed = {fragment.version(), fragment.digest()};
      status.state = fragment.state();
      status.reason = away ? absl::StrCat("shard ", shard, " has not been heard of for ", (now_ms - heard_ms) / 1000,
                                          " s; its fragments wait for it")
                           : fragment.reason();
      status.contributors.assign(fragment.contributors().begin(), fragment.contributors().end());
    }
  }
  std::ranges::sort(snapshot->fragments, {}, &FragmentStatus::id);
}

}  // namespace causeway::server
