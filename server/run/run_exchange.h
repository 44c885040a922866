// The coordinator: the lock around a run, its clock and its journal. It decides nothing itself.
//
//   reactors ── bytes to inputs ──► Handle ── Input, now ──► Run, under the lock
//      ▲                               │ Ready
//      │                               ▼
//      ├── messages, verdicts ◄────── Journal (durable first)
//      └── updates ◄── Parameters (merge thread) ◄──┘
//
// Nothing leaves before it is durable: an input changes the rules' state at once, and every visible effect of it
// (messages, verdicts, merges) follows when the journal has it, in the order of the inputs. A crash in between loses
// only decisions that no peer has seen.
//
// Thread-safe: one mutex around the run; writing, merging and encoding happen outside it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "causeway/v1/coordinator.pb.h"
#include "core/mutex.h"
#include "server/run/run.h"
#include "server/status/status_snapshot.h"
#include "server/store/journal.h"

namespace causeway::server {

class RunExchange {
 public:
  // Begins a new run, or continues the journal's (the caller has checked that it is the same one): rounds that were
  // decided and not merged are merged again. DATA_LOSS if the stored state is inconsistent. `journal` outlives it.
  static absl::StatusOr<std::unique_ptr<RunExchange>> Create(RunOptions options, Journal* journal, StoredRun stored);
  ~RunExchange();

  // One input: commits what it leaves, and returns its answer. Ask: returns when that is durable.
  Ready Handle(const Input& input);
  absl::StatusOr<Ready> Ask(const Input& input);
  // Reads the run: question(run) under the lock.
  template <typename Question>
  auto View(Question question) const {
    core::MutexLock lock(mutex_);
    return question(run_.View());
  }
  const Admission& admission() const { return run_.View().admission; }  // for its constant functions
  const RunOptions& options() const { return options_; }
  Journal& journal() { return *journal_; }

  // Inputs that take more than the lock.
  void Join(const std::shared_ptr<SitePeer>& peer, const v1::Join& join);
  // Every chunk is there, or none is needed. The verdict comes on another thread, when it is durable.
  void CompleteUpload(const v1::UploadHeader& header, Upload upload, const std::shared_ptr<UploadPeer>& peer);
  // Returns each fragment's version when it is durable. FAILED_PRECONDITION: the version is not kept; the message lists
  // those that are.
  absl::StatusOr<std::vector<core::Version>> RollBack(core::Version version);

  // The changes of the run's settings after `revision` that a site may hear of.
  std::vector<core::SettingsRevision> SettingsAfter(int64_t revision) const;
  // A stream of a download has sent everything; it began at `begun_ms` of the run's clock.
  void Taken(const v1::DownloadRequest& request, int64_t begun_ms);
  v1::ShardReport Report() const { return durable_.report.Message(); }

  v1::RunDescription Describe() const;
  StatusSnapshot Status() const;

  // ---- The owner of the process ----
  void Tick();                            // a few dozen times a second
  void Fail(const absl::Status& status);  // the coordinator cannot continue
  absl::Status Finish();                  // after the last call: merges the decided rounds and saves snapshots
  bool done() const;                      // the run is done, and all peers have been notified
  absl::Status status() const;            // not OK: why it cannot continue

 private:
  RunExchange(RunOptions options, Journal* journal);
  absl::Status Begin(const StoredRun& stored);
  void PublishStatus();  // on the thread that ticks

  const RunOptions options_;
  Journal* const journal_;
  const int64_t started_ms_;

  mutable core::Mutex mutex_;
  int64_t sampled_ms_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  DurableFacts durable_;
  RunFigures figures_;
  Run run_;  // under mutex_, except for functions marked constant
};

}  // namespace causeway::server
