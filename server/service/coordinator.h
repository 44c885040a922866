// The coordinator: turns what arrives into events for the rules, and what the rules decide into messages, merges and
// files. It decides nothing itself.
//
//   reactors ── Join, Ready, chunks … ──► Coordinator ──► RoundTable (rules)
//      ▲                                     │    └─────► Parameters (merge thread) ──► updates
//      └────────── SitePeer::Send ◄──────────┘    └─────► StateStore (snapshots)
//
// Thread-safe: one mutex around the rules and the open contributions; merging and encoding happen outside it.
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
#include "core/run_config.h"
#include "server/rounds/round_table.h"
#include "server/service/parameters.h"
#include "server/status/status_snapshot.h"
#include "server/store/state_store.h"
#include "transport/byte_meter.h"

namespace causeway::server {

// The site's end of a control stream, as the coordinator sees it. Thread-safe, does not block.
class SitePeer {
 public:
  virtual ~SitePeer() = default;
  virtual void Send(const v1::CoordinatorMessage& message) = 0;
  virtual void Close() = 0;  // after what was sent
};

// Payload bytes of one site, from and to it.
struct SiteMeters {
  transport::ByteMeter up;
  transport::ByteMeter down;
};

struct CoordinatorOptions {
  core::RunConfig config;
  std::string run_config;           // the same, serialized, for sites
  std::string config_json;          // the same, for /status
  std::function<int64_t()> now_ms;  // monotonic
};

class Coordinator {
 public:
  // Begins a new run, or goes on from a saved state of the same one (the caller has checked that it is).
  // DATA_LOSS if the saved state does not fit together.
  static absl::StatusOr<std::unique_ptr<Coordinator>> Create(CoordinatorOptions options, StateStore* store,
                                                             std::optional<SavedState> saved);

  v1::RunDescription Describe() const;

  // INVALID_ARGUMENT or FAILED_PRECONDITION if the caller speaks of another run, protocol, shard or a later epoch.
  absl::Status CheckContext(const v1::Context& context) const;

  // ---- Control streams ----
  void Join(const std::shared_ptr<SitePeer>& peer, const v1::Join& join);
  void Ready(const SitePeer* peer);
  void Progress(const SitePeer* peer, const v1::Progress& progress);
  void Leave(const SitePeer* peer, const v1::Leave& leave);
  void Disconnected(const SitePeer* peer);

  // ---- Bulk streams ----

  // A contribution (or initial parameters) that is being received.
  struct Upload {
    std::shared_ptr<Contribution> contribution;
    std::shared_ptr<SiteMeters> meters;
    std::optional<v1::Verdict> verdict;  // known already: no chunk is needed
  };
  absl::StatusOr<Upload> BeginUpload(const v1::UploadHeader& header);
  // After every chunk is there: admits it.
  v1::Verdict CompleteUpload(const v1::UploadHeader& header, const std::shared_ptr<Contribution>& contribution);

  // The source of a download, or nullptr when it has to wait for `wake`.
  absl::StatusOr<std::shared_ptr<ChunkSource>> BeginDownload(const v1::DownloadRequest& request,
                                                             std::function<void()> wake);
  std::shared_ptr<SiteMeters> Meters(const core::SiteId& site);

  // ---- The people who run it ----
  absl::Status Drain(const core::SiteId& site);  // FAILED_PRECONDITION if it is not in the run
  StatusSnapshot Status() const;

  // ---- The owner of the process ----
  void Tick();            // a few times a second
  absl::Status Finish();  // no more calls come: merges what was decided and saves
  bool done() const;

 private:
  struct Member {
    std::shared_ptr<SitePeer> peer;  // of its current control stream
    core::SessionId session;
    core::Progress progress;
    std::shared_ptr<SiteMeters> meters = std::make_shared<SiteMeters>();
    std::string logged_reason;
  };

  Coordinator(CoordinatorOptions options, StateStore* store);
  absl::Status Restore(SavedState saved);

  // The run's fragment map, if the site may join as far as the rules are not concerned.
  absl::StatusOr<core::FragmentMap> CheckJoin(const v1::Join& join) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SetMap(core::FragmentMap map) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Perform(const Actions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Perform(const RequestSeed& action) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Perform(const Enter& action) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Perform(const CloseRound& action) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Perform(const Dropped& action) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  core::SiteId SiteOf(const SitePeer* peer) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);  // empty: none
  void SendTo(const core::SiteId& site, const v1::CoordinatorMessage& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendDrain(const core::SiteId& site) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NoteReasons() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Upload> BeginSeed(const v1::UploadHeader& header) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  v1::Verdict CompleteSeed();
  void OnMerged(core::FragmentId fragment, core::AnchorDigest committed);
  std::optional<SavedState> CaptureState() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const CoordinatorOptions options_;
  StateStore* const store_;
  const int64_t started_ms_;
  uint64_t epoch_ = 1;
  std::string lineage_;

  mutable core::Mutex mutex_;
  std::unique_ptr<RoundTable> rounds_ ABSL_GUARDED_BY(mutex_);
  std::optional<core::FragmentMap> map_ ABSL_GUARDED_BY(mutex_);  // from the first manifest on
  std::map<core::SiteId, Member> members_ ABSL_GUARDED_BY(mutex_);
  // Contributions to the open round of each fragment, arriving and admitted.
  std::vector<std::map<core::SiteId, std::shared_ptr<Contribution>>> open_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Contribution>> seeds_ ABSL_GUARDED_BY(mutex_);  // initial parameters, arriving
  core::SessionId seeder_session_ ABSL_GUARDED_BY(mutex_);
  core::SiteId seeder_ ABSL_GUARDED_BY(mutex_);  // was asked for them
  EvalLoss eval_loss_ ABSL_GUARDED_BY(mutex_);
  std::string noted_reason_ ABSL_GUARDED_BY(mutex_);
  core::Version saved_round_ ABSL_GUARDED_BY(mutex_) = 0;
  std::unique_ptr<Parameters> parameters_;  // from the first manifest on
};

}  // namespace causeway::server
