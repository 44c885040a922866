// All that an event of the run leaves: what to store, and what to do once that is durable, in this order.
//
//   event ─► Run ─► Ready {entry, effects} ─► Journal ── durable ──► Perform: sends, answers, merges
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
#include "server/run/shard_reports.h"
#include "server/run/waiters.h"
#include "server/store/journal.h"
#include "server/store/records.h"

namespace causeway::server {

// The peers' ends of a site's control stream, of another shard's Follow stream and of an upload, as the coordinator
// sees them. Thread-safe; they do not block.
class SitePeer {
 public:
  virtual ~SitePeer() = default;
  virtual void Send(const v1::CoordinatorMessage& message) = 0;
  virtual void Close() = 0;  // after the pending messages
};
class ShardPeer {
 public:
  virtual ~ShardPeer() = default;
  virtual void Send(const v1::MembershipUpdate& update) = 0;
};
class UploadPeer {
 public:
  virtual ~UploadPeer() = default;
  virtual void Answer(const absl::StatusOr<v1::Verdict>& verdict) = 0;  // not OK: the stream ends with this status
};

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
  bool state_changed = false;  // the rules' state goes to the journal
  std::vector<Effect> effects;

  // Adds an event to the history; `fragment` −1 and `site` "": none. The text is clipped to core::kMaxEventTextBytes.
  void Note(const std::string& kind, const core::SiteId& site, core::FragmentId fragment, const std::string& text);
  void Note(const std::string& kind, const std::string& text) { Note(kind, "", -1, text); }

  std::string Text() const;  // a line for each part of the entry and for each effect
};

// Commits all of it as one entry, with the rules' `state` if that has changed; does nothing if there is nothing.
void Commit(Ready ready, const core::RoundState& state, DurableFacts& durable, Journal& journal);

}  // namespace causeway::server
