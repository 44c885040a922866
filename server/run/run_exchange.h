// The coordinator: the lock around a run, its clock and its journal. It decides nothing itself.
//
//   reactors ── Join, chunks, … ──► SiteCalls, Transfers, ShardCalls, Operators
//      ▲                               │ With(event), under the lock
//      │                               ▼
//      │                              Run: the rules' decisions reach its objects, and the ready
//      │                               │ Publish
//      │                               ▼
//      ├── messages, verdicts ◄────── Journal (durable first)
//      └── updates ◄── Parameters (merge thread) ◄──┘
//
// Nothing leaves before it is durable: an event changes the rules' state at once, and every visible effect of it
// (messages, verdicts, merges) follows when the journal has it, in the order of the events. A crash in between loses
// only decisions that no peer has seen.
//
// Thread-safe: one mutex around the run; writing, merging and encoding happen outside it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "causeway/v1/coordinator.pb.h"
#include "core/mutex.h"
#include "server/run/lead_shard.h"
#include "server/run/operators.h"
#include "server/run/run.h"
#include "server/run/run_options.h"
#include "server/run/run_parts.h"
#include "server/run/run_view.h"
#include "server/run/shard_reports.h"
#include "server/run/site_calls.h"
#include "server/run/transfers.h"
#include "server/status/status_snapshot.h"
#include "server/store/journal.h"

namespace causeway::server {

// The streams between the shards of a run. Thread-safe.
class RunExchange;

class ShardCalls {
 public:
  // The arguments outlive this object.
  ShardCalls(RunExchange& exchange, const RunOptions& options, const OwnReport& report, ShownShards& shown)
      : exchange_(exchange), options_(options), report_(report), shown_(shown) {}

  // Shard 0: the other shards' streams. FAILED_PRECONDITION if the caller is no shard of this run.
  absl::Status BeginFollow(const v1::Context& context, const std::shared_ptr<ShardPeer>& peer);
  void HeardOfShard(int shard, const v1::ShardReport& report);
  void EndFollow(const ShardPeer* peer);

  // A shard beyond the first: updates from shard 0, and the report to it. A report contains only durable facts.
  void Follow(const v1::MembershipUpdate& update);
  v1::ShardReport Report() const { return report_.Message(); }

 private:
  RunExchange& exchange_;
  const RunOptions& options_;
  const OwnReport& report_;
  ShownShards& shown_;
};

// How long this process stood still between two ticks: leases do not run meanwhile. One owner at a time.
class StallWatch {
 public:
  // `started_ms`: of the monotonic clock. A tick later than a quarter of a lease is late.
  StallWatch(int64_t started_ms, int64_t lease_ms) : ticked_ms_(started_ms), lease_ms_(lease_ms) {}

  void Tick(int64_t now_ms, RunParts& run);

 private:
  bool ticked_ = false;  // the first tick is never late: a start may take minutes
  int64_t ticked_ms_;
  const int64_t lease_ms_;
};

class RunExchange {
 public:
  // Begins a new run, or continues the journal's (the caller has checked that it is the same one): rounds that were
  // decided and not merged are merged again. DATA_LOSS if the stored state is inconsistent. `journal` outlives it.
  static absl::StatusOr<std::unique_ptr<RunExchange>> Create(RunOptions options, Journal* journal, StoredRun stored);
  ~RunExchange();

  v1::RunDescription Describe() const;

  // FAILED_PRECONDITION if the caller names another run, protocol or shard, or has seen a state other than this one.
  absl::Status CheckContext(const v1::Context& context) const { return run_.admission.CheckContext(context); }

  const Claims& claims() const { return run_.admission.claims(); }
  const Admission& admission() const { return run_.admission; }  // for its constant functions
  int64_t now_ms() const { return options_.clock->NowMs(); }

  // The interfaces for each kind of caller.
  SiteCalls sites() { return {*this, options_, *journal_}; }
  Transfers transfers() { return {*this, options_, *journal_, figures_}; }
  ShardCalls shards() { return {*this, options_, durable_.report, shown_shards_}; }
  Operators operators() { return {*this, options_, *journal_}; }

  // Calls event(run) under the lock. The event publishes what it has changed.
  template <typename Event>
  auto With(Event event) {
    core::MutexLock lock(mutex_);
    return event(run_);
  }
  // One event of an operator: performs its actions and publishes; returns when that is durable. Nothing is published if
  // it fails.
  absl::Status Ask(const std::function<absl::Status(RunParts&, Actions&)>& event);
  void Fail(const absl::Status& status);  // the coordinator cannot continue
  absl::StatusOr<std::vector<Event>> History(int64_t after_id, int64_t limit, const std::string& kind = "") const;

  StatusSnapshot Status() const;

  // ---- The owner of the process ----
  void Tick();                  // a few dozen times a second
  absl::Status Finish();        // after the last call: merges the decided rounds and saves snapshots
  bool done() const;            // the run is done, and all peers have been notified
  absl::Status status() const;  // not OK: why it cannot continue
  bool lacks_its_end() const;   // its sites prove more than its state holds, and its log may have lost its end

 private:
  RunExchange(RunOptions options, Journal* journal);
  absl::Status Begin(const StoredRun& stored);

  void OnMerged(const MergedRound& merged);
  void PublishStatus();  // on the thread that ticks

  const RunOptions options_;
  Journal* const journal_;
  const int64_t started_ms_;

  mutable core::Mutex mutex_;
  StallWatch stalls_ ABSL_GUARDED_BY(mutex_);
  int64_t sampled_ms_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  DurableFacts durable_;
  ShownShards shown_shards_;
  RunFigures figures_;
  Run run_;  // under mutex_, except for functions marked constant
};

}  // namespace causeway::server
