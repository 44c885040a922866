// The run's state and its reason, in the words of the log, the status page and the tests. Reasons are logged when they
// change, so none contains a running clock.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/rounds/round_table.h"

namespace causeway::server {

using core::FragmentId;

const char* RunStateName(RunState state) {
  switch (state) {
    case RunState::kWaiting: return "waiting";
    case RunState::kTraining: return "training";
    case RunState::kPaused: return "paused";
    case RunState::kDone: return "done";
  }
  return "unknown";
}

const char* RoundPhaseName(RoundPhase phase) {
  switch (phase) {
    case RoundPhase::kIdle: return "idle";
    case RoundPhase::kOpen: return "open";
    case RoundPhase::kGrace: return "grace";
  }
  return "unknown";
}

bool RoundTable::BelowQuorum() const {
  if (NumActive() >= rules_.membership.min_quorum || state_.finished) return false;
  for (FragmentId p = 0; p < num_fragments(); ++p) {
    if (Ending(p)) return false;
  }
  return true;
}

RunState RoundTable::run_state() const {
  if (held()) return RunState::kPaused;
  const bool no_site = NumActive() == 0;
  if ((state_.finished || state_.stopped) && no_site && !AnyJoining()) return RunState::kDone;
  if (state_.stopped) return RunState::kPaused;
  if (!state_.started) return RunState::kWaiting;
  return no_site || BelowQuorum() ? RunState::kPaused : RunState::kTraining;
}

std::string RoundTable::QuorumReason() const {
  const int active = NumActive();
  const auto apart = static_cast<int>(ActiveSites().size()) - active;
  if (active == 0 && apart > 0) return "all active sites are in quarantine (causewayctl release)";
  if (active == 0) return "no site is in the run; it goes on when one joins";
  return absl::StrCat(active, active == 1 ? " site is active, " : " sites are active, ",
                      apart > 0 ? absl::StrCat(apart, " in quarantine, ") : "", rules_.membership.min_quorum,
                      " are needed (min_quorum)");
}

void RoundTable::Doubt(const std::string& why) {
  if (!doubt_settled_ && !state_.stopped && run_state() != RunState::kDone) doubt_ = why;
}

std::string RoundTable::Reason() const {
  if (!doubt_.empty()) return doubt_;
  if (state_.paused) return "paused by an operator";
  if (state_.stopped) return "stopped by an operator";
  switch (run_state()) {
    case RunState::kWaiting:
      if (follows()) return "shard 0 has not started the run";
      if (static_cast<int>(ready_.size()) >= rules_.membership.min_sites) return MissingShards();
      return absl::StrCat(ready_.size(), " of ", rules_.membership.min_sites, " sites are ready (min_sites)");
    case RunState::kTraining: return "";
    case RunState::kPaused: return QuorumReason();
    case RunState::kDone: return "all steps are done";
  }
  return "";
}

RoundPhase RoundTable::Phase(FragmentId fragment) const {
  if (state_.contributions[fragment].empty()) return RoundPhase::kIdle;
  return !synchronous() && HasQuorum(fragment) ? RoundPhase::kGrace : RoundPhase::kOpen;
}

std::string RoundTable::RoundReason(FragmentId fragment) const {
  const auto& contributors = state_.contributions[fragment];
  if (contributors.empty()) return "";
  if (!doubt_.empty()) return doubt_;
  if (state_.paused) return "paused by an operator";
  if (!EnoughActive(fragment)) return QuorumReason();
  const std::string missing = absl::StrJoin(MissingFrom(fragment), ", ");
  const std::string waiting = missing.empty() ? "" : absl::StrCat("waiting for ", missing);
  if (synchronous()) return missing.empty() ? "complete" : waiting;
  if (!HasQuorum(fragment)) {
    return absl::StrCat(contributors.size(), " of ", Quorum(fragment), " for a quorum", missing.empty() ? "" : "; ",
                        waiting);
  }
  if (InGrace(fragment)) return absl::StrCat("grace of ", open_[fragment].grace_ms, " ms for ", missing);
  return FarEnough(fragment) ? "complete" : "keeps its distance to the rounds before";
}

}  // namespace causeway::server
