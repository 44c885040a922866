// A program's view of its link, beyond the site's: it can ask for the run's description, and continue the session of an
// earlier process. ShardLink adds the calls for one of several links, each to another shard of the run.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "transport/coordinator_link.h"

namespace causeway::transport {

// The facts that a site needs before it can join.
struct RunDescription {
  core::RunId run_id;
  std::string run_config;  // serialized; formats::ParseRunConfig reads it
  std::string http;        // HOST:PORT where the status page listens; empty: unknown
};

// Kept by a process with its checkpoint, of the coordinator; for several shards, each text has theirs, separated
// by commas.
struct Remembered {
  std::string lineage;  // of its state, as last seen; "": none
  std::string proofs;   // of what it said (transport/shown_proofs.h)
};

class SessionLink : public CoordinatorLink {
 public:
  // Before Start: continues the session of an earlier process.
  virtual void Resume(const core::SessionId& session, const Remembered& of_coordinator) = 0;
  virtual Remembered remembered() const = 0;
  virtual const core::SessionId& session() const = 0;

  // Asks for the run's description, retrying as long as necessary. UNAVAILABLE after connect_timeout_s, CANCELLED once
  // `cancelled` returns true, PERMISSION_DENIED if the peer is not a coordinator that we understand, or is another
  // shard.
  virtual absl::StatusOr<RunDescription> Describe(const std::function<bool()>& cancelled) = 0;
};

class ShardLink : public SessionLink {
 public:
  // From now on joins as of this stay, which shard 0 assigned; if the link was started, at once, on a new control
  // stream.
  virtual void JoinAs(int64_t stay) = 0;

  virtual void DropTransfers() = 0;  // all of them end with CANCELLED
};

}  // namespace causeway::transport
