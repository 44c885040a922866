// The coordinator: turns incoming calls into events for the rules, and the rules' decisions into messages, merges and
// files. It decides nothing itself.
//
//   reactors ── Join, Ready, chunks … ──► Coordinator ──► RoundTable (rules)
//      ▲                                     │ decisions, and their effects
//      │                                     ▼
//      ├── SitePeer::Send, verdicts ◄──── Journal (durable first)
//      └── updates ◄──── Parameters (merge thread) ◄──┘
//
// Nothing leaves before it is durable: an event changes the rules' state at once, and every visible effect of it
// (messages, verdicts, merges) follows when the journal has it, in the order of the events. A crash in between loses
// only decisions that no peer has seen.
//
// Thread-safe: one mutex around the rules and the open contributions; writing, merging and encoding happen outside it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "causeway/v1/coordinator.pb.h"
#include "core/mutex.h"
#include "server/run/operators.h"
#include "server/run/run.h"
#include "server/run/run_options.h"
#include "server/run/run_view.h"
#include "server/run/shard_reports.h"
#include "server/run/stall_watch.h"
#include "server/status/status_snapshot.h"
#include "server/store/journal.h"

namespace causeway::server {

class Coordinator {
 public:
  // Begins a new run, or continues the journal's (the caller has checked that it is the same one): rounds that were
  // decided and not merged are merged again. DATA_LOSS if the stored state is inconsistent. `journal` outlives it.
  static absl::StatusOr<std::unique_ptr<Coordinator>> Create(CoordinatorOptions options, Journal* journal,
                                                             StoredRun stored);
  ~Coordinator();

  v1::RunDescription Describe() const;

  // FAILED_PRECONDITION if the caller names another run, protocol or shard, or has seen a state other than this one.
  absl::Status CheckContext(const v1::Context& context) const { return run_.admission.CheckContext(context); }

  // ---- Control streams ----
  void Join(const std::shared_ptr<SitePeer>& peer, const v1::Join& join);
  void Ready(const SitePeer* peer);
  void Progress(const SitePeer* peer, const v1::Progress& progress);
  void Leave(const SitePeer* peer, const v1::Leave& leave);
  void Disconnected(const SitePeer* peer);
  // True: the journal is full, and a stream of control messages resumes reading when `read_on` is called, on another
  // thread.
  bool AwaitsJournal(std::function<void()> read_on);
  // A stream of the site was ended because it exceeded a limit: shown for a minute, if the site is known.
  void Flooded(const core::SiteId& site, const std::string& why);

  // ---- Bulk streams ----

  absl::StatusOr<Upload> BeginUpload(const v1::UploadHeader& header);
  // Admits the contribution once every chunk is there, or none is needed. The verdict comes on another thread, when it
  // is durable.
  void CompleteUpload(const v1::UploadHeader& header, Upload upload, OnVerdict verdict);

  using Download = RunModel::Download;
  absl::StatusOr<Download> BeginDownload(const v1::DownloadRequest& request, Waiter waiter);
  std::shared_ptr<SiteMeters> Meters(const core::SiteId& site);

  // A stream of a download has sent everything; it began at `begun_ms` of now_ms().
  void Taken(const v1::DownloadRequest& request, int64_t begun_ms);
  int64_t now_ms() const { return options_.clock->NowMs(); }
  const Claims& claims() const { return run_.admission.claims(); }

  // ---- Shards (coordinator_shards.cc) ----
  // Shard 0: the other shards' streams. FAILED_PRECONDITION if the caller is no shard of this run.
  absl::Status BeginFollow(const v1::Context& context, const std::shared_ptr<ShardPeer>& peer);
  void HeardOfShard(int shard, const v1::ShardReport& report);
  void EndFollow(const ShardPeer* peer);
  // A shard beyond the first: updates from shard 0, and the report to it. A report contains only durable facts.
  void Follow(const v1::MembershipUpdate& update);
  v1::ShardReport Report() const { return report_.Message(); }
  void Fail(const absl::Status& status);  // it cannot continue

  // ---- The people who run it ----
  Operators operators() { return {*this, options_, *journal_}; }
  absl::StatusOr<std::vector<Event>> History(int64_t after_id, int64_t limit, const std::string& kind = "") const;
  // One event of theirs: performs its actions and publishes; returns when that is durable. Nothing is published if it
  // fails.
  absl::Status Ask(const std::function<absl::Status(RunParts&, Actions&)>& event);
  absl::StatusOr<int> NumSeededFragments() const;  // FAILED_PRECONDITION before there are parameters

  StatusSnapshot Status() const;

  // ---- The owner of the process ----
  void Tick();                  // a few dozen times a second
  absl::Status Finish();        // after the last call: merges the decided rounds and saves snapshots
  bool done() const;            // and all peers have been notified
  absl::Status status() const;  // not OK: why it cannot continue
  bool lacks_its_end() const;   // its sites prove more than its state holds, and its log may have lost its end

 private:
  Coordinator(CoordinatorOptions options, Journal* journal);
  absl::Status Begin(const StoredRun& stored);

  absl::StatusOr<Upload> BeginSeed(const v1::UploadHeader& header) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CompleteSeed(const v1::UploadHeader& header, const OnVerdict& verdict);
  void OnMerged(const MergedRound& merged);
  bool Owns(core::FragmentId fragment) const { return options_.shard.Owns(fragment); }
  absl::Status CheckOwned(core::FragmentId fragment) const;
  void Take(const v1::MembershipUpdate& update) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // coordinator_status.cc: the status for readers.
  void PublishStatus();  // on the thread that ticks

  const CoordinatorOptions options_;
  Journal* const journal_;
  const int64_t started_ms_;

  mutable core::Mutex mutex_;
  StallWatch stalls_ ABSL_GUARDED_BY(mutex_);
  int64_t sampled_ms_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  OwnReport report_;
  ShownShards shown_shards_;
  RunFigures figures_;
  Run run_;  // under mutex_, but for what says that it is constant
};

}  // namespace causeway::server
