// A site's session at one coordinator: whether it is joined, when to join again, what a welcome means, and how it ends.
//
//   apart ── Join ─► joining ── Take, Enter ─► welcomed
//     ▲                 │                         │
//     └──── Ended ◄─────┴─────────────────────────┘      TakeWait: how long until the next Join
//
// The first welcome has two steps, because between them the link drops what is void and its listener hears of it:
// transfers are launched only after that. Pure: time and chance are arguments.
#pragma once

#include <grpcpp/support/status.h>

#include <cstdint>
#include <optional>
#include <string>

#include "causeway/v1/coordinator.pb.h"
#include "core/ids.h"
#include "core/shard.h"
#include "transport/coordinator_link.h"

namespace causeway::transport {

// The coordinator knows who the site is, or wants to, and does not let it in: asking again does not help.
bool IsRefusal(const grpc::Status& status);

// `connect_timeout_s`: 0 = never.
bool UnreachableTooLong(int64_t connect_timeout_s, int64_t since_ms, int64_t now_ms);

class ControlSession {
 public:
  struct Wait {
    int64_t ms = 0;
    std::string error;         // why the last stream ended
    bool unconnected = false;  // it had no connection: what TLS says of it may explain more
    bool refused = false;      // for now, by the coordinator
  };

  ControlSession(core::SiteId site, core::Shard shard, int64_t connect_timeout_s, core::SessionId id);

  // ---- Who speaks, and to which life of which run ----
  void Resume(const core::SessionId& id, const std::string& lineage);
  void SetRun(const core::RunId& run_id) { known_.run_id = run_id; }
  void SetStay(int64_t stay) { known_.told_stay = stay; }  // that another shard than 0 is told
  v1::Context Context() const;
  const core::SessionId& id() const { return id_; }
  const std::string& lineage() const { return known_.lineage; }
  std::optional<uint64_t> generation() const { return known_.generation; }

  // ---- Joined, and not ----
  void Begin(int64_t now_ms) { unreached_since_ms_ = now_ms; }
  bool running() const { return state_ != State::kApart; }  // there is a control stream
  bool welcomed() const { return state_ == State::kWelcomed; }
  // A stream begins with this message. `joining`: the site has no place yet.
  void Join(bool joining, v1::Join* join);
  Welcome Take(const v1::Welcome& welcome, core::FragmentMap map);  // what it means for the site
  std::optional<v1::SiteMessage> Enter();                    // welcomed, from here on; the leave that it was to hear
  void Refused(const v1::Refused& refused, int64_t now_ms);  // for now
  void Ended(const grpc::Status& status, int64_t now_ms);
  bool HasToWait() const { return !running() && attempts_ > 0; }
  Wait TakeWait(uint64_t random);
  bool GivesUp(int64_t now_ms) const;  // no coordinator was reached for too long
  const std::string& last_error() const { return last_error_; }
  void Heard(int64_t now_ms) { heard_ms_ = now_ms; }  // a message of the coordinator
  // A report goes out, and says how long ago that was. True: with a ping before it, whose answer the next one counts
  // from; a lease lasts several reports, whatever its length.
  bool Report(int64_t now_ms, v1::Progress* report) const;

  // ---- The end ----
  void Leave(v1::SiteMessage leave) { leave_ = std::move(leave); }
  bool HasLeft(bool finished) const;  // or there is no use in waiting for the coordinator to hear it
  void Hurry() { hurried_ = true; }
  void Stop() { stopping_ = true; }
  bool Fail();  // false: it has before
  bool stopping() const { return stopping_; }
  bool over() const { return stopping_ || failed_; }

 private:
  enum class State { kApart, kJoining, kWelcomed };
  struct Known {
    core::RunId run_id;
    uint64_t epoch = 0;
    std::string lineage;
    uint64_t life = 0;                   // of the coordinator with that epoch
    std::optional<uint64_t> generation;  // of the model that it was welcomed to
    int64_t told_stay = 0;
    int64_t welcomed_stay = 0;
  };

  const core::SiteId site_;
  const core::Shard shard_;
  const int64_t connect_timeout_s_;
  core::SessionId id_;
  Known known_;

  State state_ = State::kApart;
  bool joining_ = false;  // as the last Join said
  int attempts_ = 0;
  int64_t retry_after_ms_ = 0;  // the coordinator asked us to wait so long
  int64_t unreached_since_ms_ = 0;
  std::string last_error_;
  bool unconnected_ = false;  // the last time, before it was welcomed
  int64_t heard_ms_ = 0;

  std::optional<v1::SiteMessage> leave_;  // on its way
  bool left_ = false;                     // the coordinator has heard it
  bool hurried_ = false, stopping_ = false, failed_ = false;
};

}  // namespace causeway::transport
