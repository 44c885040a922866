// Follows shard 0 on behalf of another shard's coordinator: delivers shard 0's decisions, and returns reports to it.
//
//   shard 0 ── MembershipUpdate ──► thread ──► RunExchange::Follow
//      ▲                                            │ Report, durable facts
//      └──────────── ShardReport ◄── thread ◄───────┘ checked every 50 ms, sent when it has changed
//
// While shard 0 is away, this shard's coordinator continues with the membership that it knows, and the follower retries
// forever. Only a shard that is refused before it has followed in this life ends, through RunExchange::Fail.
#pragma once

#include <memory>

#include "core/mutex.h"
#include "core/thread.h"
#include "server/run/run_exchange.h"
#include "transport/wire.h"

namespace causeway::server {

struct MembershipFollowerOptions {
  transport::Address lead;  // for error messages
  core::Shard shard;
  core::RunId run_id;
};

class MembershipFollower {
 public:
  // The coordinator outlives it.
  MembershipFollower(MembershipFollowerOptions options, std::unique_ptr<transport::Wire> lead, RunExchange* exchange);
  ~MembershipFollower();

 private:
  void Run();
  grpc::Status FollowOnce();
  void SendReports(transport::FollowCall& stream, const std::string& reported);
  bool WaitToAskAgain(int64_t wait_ms);  // false: stopping

  const MembershipFollowerOptions options_;
  RunExchange* const exchange_;
  const std::unique_ptr<transport::Wire> lead_;
  bool has_followed_ = false;  // used by the thread alone
  core::Mutex mutex_;
  core::Condition changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool stream_ended_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mutex_) = nullptr;  // the open stream's context
  core::Thread thread_;
};

}  // namespace causeway::server
