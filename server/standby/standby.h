// A standby of a coordinator: it keeps a copy of the leader's state directory, a few milliseconds old, and leads the run
// once it is promoted.
//
//   leader ══ Replicate ══► pieces of files, marks ─► MirrorDirectory        Promote ─► standby.json ─► an ordinary start
//          ◄══ what is here, then each mark ══
//
// No commit of the leader waits for it. It answers sites, too, with the address of its leader. Thread-safe.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "causeway/v1/coordinator.grpc.pb.h"
#include "core/clock.h"
#include "core/mutex.h"
#include "core/thread.h"
#include "server/calls/call_service.h"
#include "server/store/mirror_directory.h"
#include "transport/channel.h"

namespace causeway::server {

struct StandbyOptions {
  std::string state_dir;
  core::Address leader;
  transport::ChannelOptions channel;  // to it
  core::RunId run_id;
  core::Shard shard;
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
  // FAILED_PRECONDITION: that is not so, or the first copy is not whole. UNAVAILABLE: the leader has not handed over yet.
  absl::Status Promote(bool leader_is_stopped);
  v1::RunDescription Describe() const;
  std::string Progress() const;  // "12 records from 10.0.0.1:7077, the last 0.2 s ago"
  absl::Status CheckContext(const v1::Context& context) const;
  const StandbyOptions& options() const { return options_; }

  bool promoted() const { return promoted_; }
  absl::Status status() const;  // not OK: what no retry mends

 private:
  Standby(StandbyOptions options, std::unique_ptr<MirrorDirectory> directory);
  void Run();
  absl::Status CopyOnce();
  absl::Status Receive(const v1::ReplicateReply& reply, v1::ReplicateMessage& answer);
  absl::Status Lead(bool handed_over);
  absl::Status AskToLead();
  bool Stopping() const;
  void Stop();

  const StandbyOptions options_;
  std::string address_;  // constant from Follow on
  const core::Clock& clock_ = core::SystemClock();
  const std::unique_ptr<MirrorDirectory> directory_;  // the thread's, until it has ended
  std::atomic<bool> promoted_ = false;

  mutable core::Mutex mutex_;
  core::Condition changed_;
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mutex_) = nullptr;  // of the open stream
  bool wants_to_lead_ ABSL_GUARDED_BY(mutex_) = false;              // with the next message
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t heard_ms_ ABSL_GUARDED_BY(mutex_) = -kHeardMs;
  std::string said_ ABSL_GUARDED_BY(mutex_) = "has not reached it yet";
  v1::RunDescription run_ ABSL_GUARDED_BY(mutex_);  // as the leader describes it
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0, first_copy_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t mirrored_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);

  core::Thread thread_;  // uses everything above
};

// Its answers. `standby` and `gate` outlive it.
std::unique_ptr<CallService> NewStandbyService(Standby* standby, Gate* gate);

}  // namespace causeway::server
