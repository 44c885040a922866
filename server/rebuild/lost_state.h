// A state that is lost, or has lost its end, is taken from the sites before the run goes on: a coordinator of its own
// kind serves them meanwhile (rebuild_service.h).
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "core/run_config.h"
#include "server/calls/gate.h"
#include "server/calls/listening_server.h"
#include "server/status/status_board.h"
#include "server/store/journal.h"

namespace causeway::server {

// All of it outlives the calls.
struct LostState {
  const core::RunConfig& config;  // as `open` leaves it
  Listening& addresses;
  Gate& gate;
  StatusBoard& board;
  std::string directory;  // of the state, for messages
  std::string accept;     // the one site that is believed; empty: two must agree
  std::function<absl::StatusOr<std::unique_ptr<Journal>>()> open;
  std::function<bool(int64_t ms)> wait_for_stop;  // true: a stop was requested
};

// The journal that the run goes on with: rebuilt if it had no state. A coordinator that has one continues with it: a
// supervisor may start the same command again. CANCELLED: a stop was requested.
absl::StatusOr<std::unique_ptr<Journal>> OpenOrRebuild(LostState& lost);

// After a loss of power: the state goes on as a new lineage; returns what was done. Empty: no two sites agree.
absl::StatusOr<std::string> CompleteFromSites(LostState& lost);

}  // namespace causeway::server
