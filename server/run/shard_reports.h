// Reports from the shards of a run to shard 0 (ShardReport): to its rules once they are durable, to its status page at
// once.
//
//   shard i > 0   rules ─ Note, MakeDurable ─┐                     ┌─► RunRules        shard 0
//                 status ─ Show ─────────────┴─ Message ─ Follow ──┴─► ShownShards ─ AddTo ─► status of all shards
//
// Both are thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "causeway/v1/coordinator.pb.h"
#include "core/fragment_map.h"
#include "core/ids.h"
#include "core/mutex.h"
#include "server/rounds/run_rules.h"
#include "server/status/status_snapshot.h"

namespace causeway::server {

// A shard's own report.
class OwnReport {
 public:
  bool Note(const ShardReport& report);  // whether it differs from the last one noted
  void MakeDurable(const ShardReport& report);
  void MakeNotedDurable();  // after it was read from the journal
  void Show(const StatusSnapshot& snapshot);
  v1::ShardReport Message() const;

 private:
  mutable core::Mutex mutex_;
  ShardReport noted_ ABSL_GUARDED_BY(mutex_);
  ShardReport durable_ ABSL_GUARDED_BY(mutex_);
  v1::ShardReport shown_ ABSL_GUARDED_BY(mutex_);  // fragments and traffic
};

// The other shards' fragments and traffic, for shard 0's status.
class ShownShards {
 public:
  // A shard that is silent for longer counts as away: it reports at least once a second.
  static constexpr int64_t kAwayMs = 5'000;

  void Heard(int shard, const v1::ShardReport& report, int64_t now_ms);
  // The shards other than shard 0 that are away; `began_ms`: when shard 0 was started.
  std::vector<AwayShard> Away(const core::Shard& own, int64_t began_ms, int64_t now_ms) const;
  // Adds the other shards' reports to shard 0's own snapshot. A fragment whose shard is away says so.
  void AddTo(const core::FragmentMap& map, const core::Shard& own, int64_t now_ms, StatusSnapshot* snapshot) const;

 private:
  struct Shown {
    v1::ShardReport report;
    int64_t heard_ms = 0;
  };
  mutable core::Mutex mutex_;
  std::map<int, Shown> shards_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace causeway::server
