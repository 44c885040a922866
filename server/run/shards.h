// The shards of a run. Shard 0 tells the others which sites are in, and which model the run has; they report to it.
// Both are sent when they are durable, like everything.
//
//   shard 0  rules, model ─ LeadShard ─ Tell ─ Follow ─► FollowerShard ─► rules, model      shard i > 0
//            RunRules ◄─┬─ Follow ─ Message ◄─ OwnReport ─┬─ MakeDurable ─ FollowerShard::Note
//            /status ◄──┴─ ShownShards                    └─ Show ─ status
//
// One owner at a time, but for OwnReport, which is thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "causeway/v1/coordinator.pb.h"
#include "core/fragment_map.h"
#include "core/ids.h"
#include "core/membership.h"
#include "core/mutex.h"
#include "server/rounds/run_rules.h"
#include "server/status/status_snapshot.h"

namespace causeway::server {

struct RunParts;

// Another shard's end of a Follow stream, as shard 0 sees it. Thread-safe, does not block.
class ShardPeer {
 public:
  virtual ~ShardPeer() = default;
  virtual void Send(const v1::MembershipUpdate& update) = 0;
};

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
  std::map<int, Shown> shards_;
};

class LeadShard {
 public:
  void Note(RunParts& run);  // tells the followers, if there is news
  void Begin(const std::shared_ptr<ShardPeer>& peer, RunParts& run);
  void End(const ShardPeer* peer);

  ShownShards shown;

 private:
  v1::MembershipUpdate MakeUpdate(const RunParts& run) const;

  std::vector<std::shared_ptr<ShardPeer>> followers_;
  core::Membership told_;
  uint64_t told_generation_ = 0;  // the model's generation in the last update
};

class FollowerShard {
 public:
  enum class News {
    kLater,         // the update waits until a seed is saved; TakeLate returns it then
    kMembership,    // membership() is shard 0's
    kAnotherModel,  // the same, and the model has changed: sites have to be welcomed anew
  };
  // Takes shard 0's word, also that about the model. FAILED_PRECONDITION: it is of another run, or does not fit what
  // was trained here.
  absl::StatusOr<News> Take(const v1::MembershipUpdate& update, RunParts& run);
  std::optional<v1::MembershipUpdate> TakeLate() { return std::exchange(late_, std::nullopt); }
  const core::Membership& membership() const { return membership_; }

  void Note(RunParts& run);  // reports to shard 0 what is news, once it is durable

 private:
  core::Membership membership_;
  std::optional<v1::MembershipUpdate> late_;
};

}  // namespace causeway::server
