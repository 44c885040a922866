// What a program needs of its link beside what the site sees: to ask what run there is, and to go on with the
// session of an earlier process. And what one of several links needs on top, each to another shard of the run.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "transport/coordinator_link.h"

namespace causeway::transport {

// What a site needs before it can join.
struct RunDescription {
  core::RunId run_id;
  std::string run_config;  // serialized; formats::ParseRunConfig reads it
};

class SessionLink : public CoordinatorLink {
 public:
  // Before Start: goes on with a session of an earlier process, which held parameters of that lineage ("" for none).
  virtual void Resume(const core::SessionId& session, const std::string& lineage) = 0;
  virtual const core::SessionId& session() const = 0;

  // Asks what run this is, for as long as it takes. UNAVAILABLE after connect_timeout_s, CANCELLED once `cancelled`
  // returns true, PERMISSION_DENIED if what answers is no coordinator that we understand, or another shard.
  virtual absl::StatusOr<RunDescription> Describe(const std::function<bool()>& cancelled) = 0;
};

class ShardLink : public SessionLink {
 public:
  virtual std::string lineage() const = 0;  // of the coordinator's state, as last seen

  // From now on joins as of this stay, which shard 0 has given; at once, on a new control stream, if it was started.
  virtual void JoinStay(int64_t stay) = 0;

  virtual void DropTransfers() = 0;  // all of them end with CANCELLED
};

}  // namespace causeway::transport
