// Follows shard 0 on behalf of another shard's coordinator: brings what shard 0 decides, and takes reports there.
//
//   shard 0 ── MembershipUpdate ──► thread ──► Coordinator::Follow
//      ▲                                            │ Report, what is durable
//      └──────────── ShardReport ◄── thread ◄───────┘ looked at every 50 ms, sent when it has changed
//
// While shard 0 is away its coordinator goes on with the membership that it knows; this asks again for ever. Only a
// shard that was refused before it has followed in this life ends, through Coordinator::Fail.
#pragma once

#include <memory>

#include "core/mutex.h"
#include "core/thread.h"
#include "server/service/coordinator.h"
#include "transport/wire.h"

namespace causeway::server {

struct MembershipFollowerOptions {
  transport::Address lead;  // for words
  core::Shard shard;
  core::RunId run_id;
};

class MembershipFollower {
 public:
  // The coordinator outlives it.
  MembershipFollower(MembershipFollowerOptions options, std::unique_ptr<transport::Wire> lead,
                     Coordinator* coordinator);
  ~MembershipFollower();

 private:
  void Run();
  grpc::Status FollowOnce();
  void SendReports(transport::FollowCall& stream, const std::string& reported);
  bool WaitToAskAgain(int64_t wait_ms);  // false: it ends

  const MembershipFollowerOptions options_;
  Coordinator* const coordinator_;
  const std::unique_ptr<transport::Wire> lead_;
  bool has_followed_ = false;  // of the thread
  core::Mutex mutex_;
  core::Condition changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool stream_ended_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mutex_) = nullptr;  // of the stream
  core::Thread thread_;
};

}  // namespace causeway::server
