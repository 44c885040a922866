// The operators' commands.
#include "absl/strings/str_cat.h"
#include "server/rounds/round_table.h"

namespace causeway::server {

using core::SiteId;
using core::SiteRecord;
using core::SiteState;

absl::Status RoundTable::Pause() {
  if (state_.paused) return absl::FailedPreconditionError("the run is paused already");
  if (state_.stopped) return absl::FailedPreconditionError("the run is stopped");
  if (run_state() == RunState::kDone) return absl::FailedPreconditionError("the run is done");
  state_.paused = true;
  return absl::OkStatus();
}

absl::Status RoundTable::Resume() {
  if (!held() && !state_.stopped) {
    return absl::FailedPreconditionError("the run is neither paused nor stopped by an operator");
  }
  doubt_settled_ |= doubted();
  doubt_.clear();
  if (follows()) return absl::OkStatus();  // this shard cannot resume what shard 0 has paused
  state_.paused = state_.stopped = false;
  pace_.InterruptedAll();  // sites stood still
  return absl::OkStatus();
}

absl::Status RoundTable::Stop() {
  if (state_.stopped) return absl::FailedPreconditionError("the run is stopped already");
  if (run_state() == RunState::kDone) return absl::FailedPreconditionError("the run is done");
  doubt_.clear();
  state_.paused = false;  // or the rounds that the sites wait for in order to leave would not close
  state_.stopped = true;
  pace_.InterruptedAll();
  for (auto& [site, record] : state_.sites) {
    if (record.state != SiteState::kTraining) continue;
    record.state = SiteState::kDraining;
    record.reason = "stopped by an operator";
  }
  return absl::OkStatus();
}

absl::Status RoundTable::Release(const SiteId& site, Actions& actions, int64_t now_ms) {
  SetNow(now_ms);
  const auto found = state_.sites.find(site);
  if (found == state_.sites.end()) return absl::FailedPreconditionError(absl::StrCat("the run has no site ", site));
  SiteRecord& record = found->second;
  // Another shard may have the site in quarantine, without reporting it here.
  if (!record.quarantined && rules_.shard.alone()) {
    return absl::FailedPreconditionError(absl::StrCat("site ", site, " is not in quarantine"));
  }
  record.quarantined = false;
  record.refusals = 0;
  record.starts_anew = true;
  ++record.releases;
  if (record.state != SiteState::kGone) Drop(site, "released by an operator; joins anew, from the anchor", actions);
  return absl::OkStatus();
}

absl::Status RoundTable::RollBack(core::Version version, Actions& actions, int64_t now_ms) {
  SetNow(now_ms);
  if (run_state() == RunState::kDone) return absl::FailedPreconditionError("the run is done");
  for (core::FragmentId p = 0; p < num_fragments(); ++p) {
    if (version <= state_.versions[p]) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("fragment ", p, " is at version ", state_.versions[p], ", before version ", version));
  }
  const std::string reason = absl::StrCat("rolled back to version ", version);
  for (core::FragmentId p = 0; p < num_fragments(); ++p) {
    actions.push_back(CloseRound{.fragment = p,
                                 .base = state_.versions[p],
                                 .contributors = {},
                                 .sites = {},
                                 .reason = reason,
                                 .rolled_back_to = version});
    state_.contributions[p].clear();
    std::erase_if(state_.norms[p], [&](const core::RoundNorms& round) { return round.version > version; });
    ++state_.versions[p];
    open_[p] = {};
    closed_ms_[p] = now_ms_;
  }
  last_closed_ms_ = now_ms_;
  std::erase_if(outliers_, [&](const Outlier& outlier) { return outlier.base >= version; });
  ready_.clear();
  for (auto& [site, record] : state_.sites) {
    record.starts_anew = true;
    if (record.state != SiteState::kGone)
      MarkGone(site, absl::StrCat(reason, "; joins anew, from the anchor"), actions);
  }
  return absl::OkStatus();
}

}  // namespace causeway::server
