// A standby of a coordinator: it keeps a copy of the leader's state directory, a few milliseconds old, and leads the run
// once it is promoted.
//
//   leader ══ Replicate ══► pieces of files, marks ─► MirrorDirectory        Promote ─► standby.json ─► an ordinary start
//          ◄══ what is here, then each mark ══
//
// No commit of the leader waits for it. It answers sites, too, with the address of its leader.
//
// A coordinator that has led, and finds that another one leads its run, becomes its standby; if a standby that it knows
// does not answer, it waits as one. It leads again by itself once all of them answer that they do not lead and have seen
// no later epoch, or all sites that were in its run look for their leader, and none has seen one. Thread-safe.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "causeway/v1/coordinator.grpc.pb.h"
#include "core/clock.h"
#include "core/mutex.h"
#include "core/thread.h"
#include "server/calls/call_service.h"
#include "server/store/journal.h"
#include "server/store/mirror_directory.h"
#include "transport/channel.h"
#include "transport/first_address.h"

namespace causeway::server {

using ReplicateCall = grpc::ClientReaderWriterInterface<v1::ReplicateMessage, v1::ReplicateReply>;

// The other coordinators of a run, as this one calls them. The simulator has its own. Thread-safe.
class CoordinatorCalls {
 public:
  virtual ~CoordinatorCalls() = default;
  // As transport::FindLeader. UNAVAILABLE: the flags do not say as whom to call them.
  virtual absl::StatusOr<transport::Asked> Ask(const std::vector<core::Address>& addresses, bool starts = false) = 0;
  virtual absl::StatusOr<std::unique_ptr<ReplicateCall>> Replicate(const core::Address& leader,
                                                                   grpc::ClientContext& context) = 0;
  virtual void Cancel(grpc::ClientContext& context) = 0;
};
std::unique_ptr<CoordinatorCalls> NewCoordinatorCalls(const transport::ClientFlags& client, const core::RunId& run);

struct Elsewhere {
  core::Address address;
  bool is_later = false;  // another coordinator has led, for certain, in a later epoch than this directory knows
};
// Another coordinator that leads, or may lead, the run of this state directory, so that a start must follow it; nothing:
// the start may lead. `standby_of`: whom it is to follow, unless the directory has led since, or was promoted: a
// supervisor starts the same command again. Asks that one and the standbys that the directory knows, except `own`, for
// up to 20 s. `again`: it waits, and has said why.
absl::StatusOr<std::optional<Elsewhere>> LeaderElsewhere(const std::string& state_dir, const std::string& own,
                                                         const std::optional<core::Address>& standby_of,
                                                         CoordinatorCalls& others, bool again = false);

// For a coordinator that leads: while no standby is connected, it asks those that it has known, every 5 s, whether one
// leads in a later term; then this one has been deposed, as after a machine that hung. Calls `deposed` once, on its
// thread.
class LeaderWatch {
 public:
  LeaderWatch(const Journal& journal, CoordinatorCalls& others, std::function<void(const absl::Status&)> deposed);
  ~LeaderWatch();

 private:
  bool Ask();  // whether it is deposed

  const Journal& journal_;
  CoordinatorCalls& others_;
  const std::function<void(const absl::Status&)> deposed_;
  core::Mutex mutex_;
  core::Condition changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  core::Thread thread_;
};

// A former leader's reasons to wait. One owner at a time; times are the caller's milliseconds.
class Waiting {
 public:
  static constexpr int64_t kStartsMs = 10'000;  // after its question a coordinator may begin to lead
  static constexpr int64_t kSeenMs = 20'000;    // sites that look for their leader come again within this time

  void SiteLooks(const core::SiteId& site, uint64_t epoch, int64_t now_ms);
  // All of these sites look for their leader, none has seen a later epoch, and no other coordinator is known to lead.
  bool MayLead(const std::set<core::SiteId>& sites, uint64_t epoch, int64_t now_ms) const;
  uint64_t latest() const;  // the latest epoch that a site has seen

  void Follow(const Elsewhere& leader) {
    target = leader.address;
    later_leads = later_leads || leader.is_later;
  }
  // Whether another coordinator has asked a moment ago if it may lead.
  bool OtherStarts(int64_t now_ms) const { return now_ms - other_ms < kStartsMs; }
  int64_t other_ms = -kStartsMs;        // when it did
  bool asks = false;                    // this one does: another one that does so as well gets no answer
  std::optional<core::Address> target;  // the one that it follows now; nothing: its first leader
  bool later_leads = false;             // one has led in a later epoch: no site's word suffices

 private:
  struct Seen {
    uint64_t epoch = 0;
    int64_t at_ms = 0;
  };
  std::map<core::SiteId, Seen> seen_;
};

struct StandbyOptions {
  std::string state_dir;
  core::Address leader;
  bool later_leads = false;            // Elsewhere::is_later
  CoordinatorCalls* others = nullptr;  // outlive it
  core::RunId run_id;
  std::string run_config;  // run.yaml's, for sites that come before the first copy
  core::Shard shard;
  std::function<JournalOptions()> start;  // as an ordinary start opens the directory
};

class Standby {
 public:
  static constexpr int64_t kHeardMs = 4'000;  // a leader that has said nothing for this long may be gone

  // FAILED_PRECONDITION: the directory was promoted, or another process runs there.
  static absl::StatusOr<std::unique_ptr<Standby>> Open(StandbyOptions options);
  ~Standby();

  // Begins. `address`: HOST:PORT by which sites reach this one. `grpc`, `http`: where it listens, for addresses.json.
  absl::Status Follow(const std::string& address, const std::string& grpc, const std::string& http);

  // Ends the copy; `promoted` becomes true. A leader that is heard hands over, unless it is said to be stopped.
  // FAILED_PRECONDITION: that is not so, the first copy is not whole, or a start would be refused. UNAVAILABLE: the leader has not handed over yet.
  absl::Status Promote(bool leader_is_stopped);
  // UNAVAILABLE: it is being promoted.
  absl::StatusOr<v1::RunDescription> Describe(const v1::DescribeRequest& request);
  void Joins(const v1::Context& context);  // a site that looks for its leader
  uint64_t epoch() const;                  // of its leader, as far as it has heard
  std::string Progress() const;            // "a standby of 10.0.0.1:7077: has all up to record 12"
  absl::Status CheckContext(const v1::Context& context) const;
  const StandbyOptions& options() const { return options_; }

  bool promoted() const { return promoted_; }
  absl::Status status() const;  // not OK: what no retry mends
  void Interrupt();             // the copy ends, and calls that wait return

 private:
  struct Copied {                // in this stream, or the last
    v1::RunDescription run;      // as the leader describes it
    bool wants_to_lead = false;  // to be said with the next message
    int64_t bytes = 0, first_bytes = 0;
    uint64_t mirrored = 0;
    int64_t heard_ms = -kHeardMs;
    std::string refused;  // why the leader does not hand over; empty: it has not said so
    std::string said = "has not reached it yet";
  };

  Standby(StandbyOptions options, std::unique_ptr<MirrorDirectory> directory);
  void Run();
  absl::Status CopyOnce();
  core::Address Target() const;
  // `unfit`: why a start from the first mark of this stream would be refused; "": it would not.
  absl::Status Receive(const v1::ReplicateReply& reply, v1::ReplicateMessage& answer,
                       std::optional<std::string>& unfit);
  absl::Status Lead(bool handed_over);
  absl::Status LeadIfDue();
  absl::Status AskToLead();
  absl::Status CheckOthers(uint64_t mark) const;
  bool Stopping() const;
  void Stop();

  const StandbyOptions options_;
  std::string address_;  // constant from Follow on
  const core::Clock& clock_ = core::SystemClock();
  const std::unique_ptr<MirrorDirectory> directory_;  // the thread's, until it has ended
  LastKnown last_;                                    // of a directory that has led; constant
  std::atomic<bool> promoted_ = false;

  mutable core::Mutex mutex_;
  core::Condition changed_;
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mutex_) = nullptr;  // of the open stream
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  Copied copied_ ABSL_GUARDED_BY(mutex_);
  Waiting waiting_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);

  core::Thread thread_;  // uses everything above
};

// Its answers. `standby`, `gate` and everything that `status_json` refers to outlive it.
std::unique_ptr<CallService> NewStandbyService(Standby* standby, std::function<std::string()> status_json, Gate* gate);

}  // namespace causeway::server
