// All that a run hears of, and all that it leaves: an entry to store, and what to do once that is durable, in its order.
//
//   Input, now ─► Run::Handle ─► Ready {entry, effects} ─► Journal ── durable ──► sends, answers, merges
//
// Nothing leaves before it is durable, so that no other object sends. etcd's raft does the same with its Ready:
// persist, then send. Plain values; one owner at a time.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "causeway/v1/coordinator.pb.h"
#include "server/run/parameters.h"
#include "server/run/shards.h"
#include "server/run/uploads.h"
#include "server/store/journal.h"
#include "server/store/records.h"
#include "transport/link_meter.h"

namespace causeway::server {

// The peers' ends of a site's control stream and of an upload, as the coordinator sees them. Thread-safe; they do not
// block.
class SitePeer {
 public:
  virtual ~SitePeer() = default;
  virtual void Send(const v1::CoordinatorMessage& message) = 0;
  virtual void Close() = 0;  // after the pending messages
};
class UploadPeer {
 public:
  virtual ~UploadPeer() = default;
  virtual void Answer(const absl::StatusOr<v1::Verdict>& verdict) = 0;  // not OK: the stream ends with this status
};

// Payload bytes of one site, from and to it.
struct SiteMeters {
  transport::ByteMeter up;
  transport::ByteMeter down;
};

// A contribution, or initial parameters, that is being received.
struct Upload {
  std::shared_ptr<Contribution> contribution;  // nullptr: the verdict needs no chunk
  std::shared_ptr<SiteMeters> meters;
};

// A part of the model that is being sent.
struct Download {
  std::shared_ptr<ChunkSource> source;  // nullptr: the waiter is answered when a retry makes sense
  std::shared_ptr<SiteMeters> meters;
  uint64_t generation = 0;
};

// A control stream is named by its peer: an input of one that is not its site's newest means nothing. References live
// as long as the call of Run::Handle.
namespace input {
// ---- Control streams of sites ----
struct Join {
  const std::shared_ptr<SitePeer>& peer;
  const v1::Join& join;
  const absl::StatusOr<core::Manifest>& manifest;  // the join's, which takes milliseconds to read
};
struct SiteReady {
  const SitePeer* peer;
};
struct Progress {
  const SitePeer* peer;
  const v1::Progress& progress;
};
struct Leave {
  const SitePeer* peer;
  const v1::Leave& leave;
};
struct Disconnected {
  const SitePeer* peer;
};
struct Flooded {  // a stream of the site was ended because it exceeded a limit
  const core::SiteId& site;
  const std::string& why;
};
// ---- Transfers ----
// FAILED_PRECONDITION: the caller names another run, protocol or shard, or has seen a state other than this one.
// RETURNS: `upload`. ABORTED: the header is of an earlier stay. A contribution that the rules refuse needs no chunk.
struct BeginUpload {
  const v1::UploadHeader& header;
};
// The same. RETURNS: `download`.
struct BeginDownload {
  const v1::DownloadRequest& request;
  Waiter& waiter;
};
// Admits the contribution: every chunk is there, or none is needed. RETURNS, for initial parameters: `seed` once it is
// whole; the caller saves it.
struct CompleteUpload {
  const v1::UploadHeader& header;
  const Upload& upload;
  const std::shared_ptr<UploadPeer>& peer;
};
// Refuses an upload whose chunks the round does not take: the site encodes by other settings.
struct RefuseUpload {
  const v1::UploadHeader& header;
  const Upload& upload;
  const std::string& why;
  const std::shared_ptr<UploadPeer>& peer;
};
struct SeedSaved {};
// ---- Shards ----
struct BeginFollow {  // FAILED_PRECONDITION: the caller is no other shard of this run, or this one is not shard 0
  const v1::Context& context;
  const std::shared_ptr<ShardPeer>& peer;
};
struct EndFollow {  // of a stream that never followed: nothing
  const ShardPeer* peer;
};
struct Report {
  int shard;
  const v1::ShardReport& report;
};
struct Membership {  // from shard 0; an error is final
  const v1::MembershipUpdate& update;
};
// ---- Operators. FAILED_PRECONDITION: this is not shard 0 (names its address), or there is nothing to do ----
struct Drain {
  const core::SiteId& site;
};
struct ChangeRun {
  v1::ChangeRunRequest::Change change;
};
struct Release {  // ends the site's quarantine; empty: all sites'
  const core::SiteId& site;
};
// The parameters of a kept version become the newest, and all sites join anew, from them.
struct RollBack {
  core::Version version;
  const std::vector<int64_t>& run_tokens;  // of each fragment's snapshot
};
// RETURNS: `revisions`, this one and after it those that were to come later, on top of it.
struct ChangeSettings {
  const v1::ChangeSettingsRequest& request;
};
struct Command {  // a command as the history records it
  const std::string& text;
};
// ---- The clock ----
struct Tick {};
}  // namespace input

using Input =
    std::variant<input::Join, input::SiteReady, input::Progress, input::Leave, input::Disconnected, input::Flooded,
                 input::BeginUpload, input::BeginDownload, input::CompleteUpload, input::RefuseUpload, input::SeedSaved,
                 input::BeginFollow, input::EndFollow, input::Report, input::Membership, input::Drain, input::ChangeRun,
                 input::Release, input::RollBack, input::ChangeSettings, input::Command, input::Tick>;

namespace effect {
struct Send {
  std::shared_ptr<SitePeer> peer;
  core::SiteId site;
  v1::CoordinatorMessage message;
};
struct Close {
  std::shared_ptr<SitePeer> peer;
  core::SiteId site;
};
struct Tell {
  std::shared_ptr<ShardPeer> peer;
  std::shared_ptr<const v1::MembershipUpdate> update;
};
struct Answer {
  std::shared_ptr<UploadPeer> peer;
  core::SiteId site;
  core::FragmentId fragment = 0;
  v1::Verdict verdict;
};
struct Merge {
  std::shared_ptr<Parameters> parameters;
  MergeJob job;
};
// Readers and shard 0 may hear of it from now on.
struct Durable {
  std::variant<int64_t, ShardReport> what;  // the settings' revision, or a shard's report
};
struct NewGeneration {
  std::shared_ptr<Waiters> waiters;
  uint64_t generation = 0;
};
}  // namespace effect

using Effect = std::variant<effect::Send, effect::Close, effect::Tell, effect::Answer, effect::Merge, effect::Durable,
                            effect::NewGeneration>;

// The facts of `effect::Durable`. Thread-safe.
struct DurableFacts {
  std::atomic<int64_t> revision = 0;
  OwnReport report;
};

struct Ready {
  JournalEntry entry;
  bool state_changed = false;  // Run adds the rules' state to the entry
  std::vector<Effect> effects;

  // To the caller, at once. Not OK: the input was refused.
  absl::Status status;
  Upload upload;
  Download download;
  Seed seed;
  std::vector<core::SettingsRevision> revisions;

  // Adds an event to the history; `fragment` −1 and `site` "": none. The text is clipped to core::kMaxEventTextBytes.
  void Note(const std::string& kind, const core::SiteId& site, core::FragmentId fragment, const std::string& text);
  void Note(const std::string& kind, const std::string& text) { Note(kind, "", -1, text); }

  std::string Text() const;  // a line for each part of the entry and for each effect
};

// Commits all of it as one entry; does nothing if there is nothing. RETURNS: the answer to the caller.
Ready Commit(Ready ready, DurableFacts& durable, Journal& journal);

}  // namespace causeway::server
