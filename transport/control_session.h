// A site's session with one coordinator: whether it is joined, when to rejoin, the meaning of a welcome, and its end.
//
//   apart ── Join ─► joining ── Take, Enter ─► welcomed
//     ▲                 │                         │
//     └──── Ended ◄─────┴─────────────────────────┘      TakeWait: how long until the next Join
//
// A welcome is handled in two steps, between which the link drops void transfers and notifies its listener: transfers
// are launched only after that. Pure: time and random numbers are arguments.
#pragma once

#include <grpcpp/support/status.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "causeway/v1/coordinator.grpc.pb.h"
#include "causeway/v1/coordinator.pb.h"
#include "core/ids.h"
#include "core/mutex.h"
#include "transport/channel.h"
#include "transport/coordinator_link.h"
#include "transport/shown_proofs.h"
#include "transport/wire.h"

namespace causeway::transport {

// The coordinator rejects the site's identity, or its lack of one: a retry does not help.
bool IsRefusal(const grpc::Status& status);

// `connect_timeout_s`: 0 = never.
bool UnreachableTooLong(int64_t connect_timeout_s, int64_t since_ms, int64_t now_ms);

class ControlSession {
 public:
  struct Wait {
    int64_t ms = 0;
    std::string error;         // why the last stream ended
    bool unconnected = false;  // there was no connection: TLS may explain why
    bool refused = false;      // the coordinator has refused the site temporarily
  };

  ControlSession(core::SiteId site, core::Shard shard, int64_t connect_timeout_s, core::SessionId id);

  // ---- The identity of the session, and of the coordinator's life and run ----
  void Resume(const core::SessionId& id, const Remembered& of_coordinator);
  void SetRun(const core::RunId& run_id) { known_.run_id = run_id; }
  void SetStay(int64_t stay) { known_.told_stay = stay; }  // the stay to report to a shard beyond the first
  v1::Context Context() const;
  const core::SessionId& id() const { return id_; }
  Remembered remembered() const { return {known_.lineage, known_.proofs.Text()}; }
  ShownProofs* proofs() { return &known_.proofs; }
  std::optional<uint64_t> generation() const { return known_.generation; }

  // ---- Joining ----
  void Begin(int64_t now_ms) { unreached_since_ms_ = now_ms; }
  bool running() const { return state_ != State::kApart; }  // there is a control stream
  bool welcomed() const { return state_ == State::kWelcomed; }
  // Fills in the first message of a stream. `joining`: the site has no place yet.
  void Join(bool joining, v1::Join* join);
  Welcome Take(const v1::Welcome& welcome, core::FragmentMap map);  // returns its meaning for the site
  std::optional<v1::SiteMessage> Enter();                    // the session counts as welcomed; returns a pending leave
  void Refused(const v1::Refused& refused, int64_t now_ms);  // the coordinator has refused the site temporarily
  void Ended(const grpc::Status& status, int64_t now_ms);
  bool HasToWait() const { return !running() && attempts_ > 0; }
  Wait TakeWait(uint64_t random);
  std::optional<std::string> GivesUp(int64_t now_ms) const;  // the last error, if unreachable for too long
  void Heard(int64_t now_ms) { heard_ms_ = now_ms; }         // the coordinator sent a message
  // Fills in, for a report about to be sent, how long ago the coordinator was heard. True: send a ping first, from
  // whose answer the next report counts; a lease spans several reports, whatever its length.
  bool Report(int64_t now_ms, v1::Progress* report) const;

  // ---- The end ----
  void Leave(v1::SiteMessage leave) { leave_ = std::move(leave); }
  bool HasLeft(bool finished) const;  // the coordinator has received the leave, or waiting for that is pointless
  void Hurry() { hurried_ = true; }
  void Stop() { stopping_ = true; }
  bool Fail();  // false: it had failed before
  bool stopping() const { return stopping_; }
  bool over() const { return stopping_ || failed_; }

 private:
  enum class State { kApart, kJoining, kWelcomed };
  struct Known {
    core::RunId run_id;
    std::string lineage;
    std::optional<uint64_t> generation;  // generation of the model in the welcome
    int64_t told_stay = 0;
    int64_t welcomed_stay = 0;
    ShownProofs proofs;
  };

  const core::SiteId site_;
  const core::Shard shard_;
  const int64_t connect_timeout_s_;
  core::SessionId id_;
  Known known_;

  State state_ = State::kApart;
  bool joining_ = false;  // `joining` of the last Join
  int attempts_ = 0;
  int64_t retry_after_ms_ = 0;  // the wait that the coordinator asked for
  int64_t unreached_since_ms_ = 0;
  std::string last_error_;
  bool unconnected_ = false;  // the last attempt broke before the welcome
  int64_t heard_ms_ = 0;

  std::optional<v1::SiteMessage> leave_;  // the pending leave
  bool left_ = false;                     // the coordinator has received the leave
  bool hurried_ = false, stopping_ = false, failed_ = false;
};

// A site's control stream, as a gRPC callback reactor. It conducts the call; GrpcLink decides what to do when it
// breaks.
//
// Started by its static Start, it lives until the call is over, and calls `ended` exactly once, last. Callbacks run on
// gRPC's threads. Send and Cancel are thread-safe.
class ControlStream final : public ControlCall {
 public:
  using OnMessage = std::function<void(const v1::CoordinatorMessage&)>;
  using OnEnded = std::function<void(const grpc::Status&)>;

  static std::shared_ptr<ControlStream> Start(Wire& wire, v1::Join join, OnMessage on_message, OnEnded on_ended);
  void Send(v1::SiteMessage message);
  void Cancel() { wire_.Cancel(context_); }

 private:
  explicit ControlStream(Wire& wire) : wire_(wire) {}

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  Wire& wire_;  // outlives the call
  grpc::ClientContext context_;
  OnMessage on_message_;
  OnEnded on_ended_;
  v1::CoordinatorMessage incoming_;
  core::Mutex mutex_;
  std::deque<v1::SiteMessage> outgoing_ ABSL_GUARDED_BY(mutex_);  // front is being written
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<ControlStream> self_;  // keeps the stream alive until OnDone
};

// Asks a coordinator for its run's description.
//
//   DescribeRequest ─► gRPC ~~► coordinator ~~► gRPC's thread ─► answer ─► the thread that waits here

inline constexpr int64_t kStopPollMs = 50;  // how long a wait may outlive its caller

// Makes one attempt, of at most five seconds; gives up if cancelled. Thread-safe.
grpc::Status AskForDescription(v1::Coordinator::Stub& stub, const core::SiteId& site,
                               absl::FunctionRef<bool()> cancelled, v1::RunDescription& description);

// OK if the answer comes from the run's coordinator. UNAVAILABLE: retry. PERMISSION_DENIED: a retry does not help.
// Pure.
absl::Status MeaningOf(const grpc::Status& status, const v1::RunDescription& description, const core::Shard& expected,
                       const Address& coordinator);

}  // namespace causeway::transport
