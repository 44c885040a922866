// Commands from rank 0 of a site, the leader, to the other ranks, its followers: what all of them do next.
//
//   leader     Tell(command, payload) ─► one small broadcast, and one of the payload where there is one
//   follower   Next() ─► the next command          nothing for `timeout` ─► the leader has ended, or hangs
//
// While the leader waits for something else, a separate thread sends kAlive every few seconds, so that followers can
// tell a wait from a hang, and the leader notices a rank that has gone. Commands travel in a group of their own,
// separate from the values that trainers reduce. Statuses are INTERNAL and name the rank. Next is for one thread; Tell
// for any.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/mutex.h"
#include "core/thread.h"
#include "worker/ranks/collectives.h"

namespace causeway::worker {

struct RankCommand {
  enum class Kind : uint32_t {
    kAlive,
    kRun,    // payload: the run's config
    kCheck,  // gathers each rank's digest of its initial state
    kSave,   // the leader saves: send it the state that it lacks
    kLoad,   // `count` bytes of a trainer's file follow
    kSites,  // payload: the sites that share the data, one name per line
    kStep,   // takes step `count`; payload: where run.tokens moves the schedule to; empty: nowhere
    kSet,    // payload: the run's config, which has changed
    kMove,   // payload: how θ moves; the values follow
    kRead,   // payload: ranges of θ that the leader reads; their holders send them
    kEnd,    // payload: why; `count`: 1 if the site's part in the run is done
  };
  Kind kind = Kind::kAlive;
  int64_t count = 0;
  std::string payload;
};

class RankControl {
 public:
  RankControl(std::unique_ptr<Collectives> group, double timeout_s);
  ~RankControl();

  Collectives& group() { return *group_; }
  bool alone() const { return group_->world() == 1; }  // Tell then does nothing

  // ---- The leader ----
  absl::Status Tell(const RankCommand& command);
  // From now on sends kAlive when there is nothing else to send; `failed` is called once, on its thread, with the
  // failure of a rank that it notices.
  void StayAlive(std::function<void(const absl::Status&)> failed);
  // Between these two calls the ranks work together, and no command is sent.
  void BeginTogether();
  void EndTogether();

  // ---- A follower ----
  absl::StatusOr<RankCommand> Next();  // never kAlive

  // ---- All, in the same order ----
  absl::Status Broadcast(std::span<std::byte> bytes);  // sends the leader's bytes to all
  absl::Status Await(Collectives::Ticket ticket);      // awaits an operation of group()
  absl::StatusOr<std::vector<uint64_t>> GatherDigests(uint64_t mine);

 private:
  struct Head;

  absl::Status Say(const RankCommand& command) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void KeepAlive();

  const std::unique_ptr<Collectives> group_;
  const Collectives::Timeout timeout_;
  std::function<void(const absl::Status&)> failed_;
  core::Mutex mutex_;
  core::Condition changed_;
  bool together_ ABSL_GUARDED_BY(mutex_) = false;
  bool said_ ABSL_GUARDED_BY(mutex_) = false;  // something was sent since KeepAlive looked
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  core::Thread thread_;
};

// While it exists the ranks work together, and the leader sends no command.
class RanksTogether {
 public:
  explicit RanksTogether(RankControl& control) : control_(control) { control_.BeginTogether(); }
  ~RanksTogether() { control_.EndTogether(); }

 private:
  RankControl& control_;
};

}  // namespace causeway::worker
