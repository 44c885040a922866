// The facts from which several rules of a run decide. All rules read them; each field is changed by those named beside
// it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/ids.h"
#include "core/membership.h"
#include "core/run_config.h"
#include "core/schedule.h"
#include "server/rounds/run_events.h"

namespace causeway::server {

// Names of sites that are gone, and the choice of the one to give up when a run has reached its limit of sites: the one
// that has been gone for longest. A missed site (IsLost) is given up last; a site whose contribution waits to be merged
// is never given up. Pure; one owner at a time.
// Whether the site is missed: it is gone because its lease ended.
inline bool IsLost(const core::SiteRecord& record) {
  return record.state == core::SiteState::kGone && record.ended == core::Ended::kExpired;
}

// Whether a contribution of the site is in an open round.
bool WaitsForMerge(const core::RoundState& state, const core::SiteId& site);

class GoneNames {
 public:
  static bool IsFull(const core::RoundState& state);  // the run has core::kMaxSites names
  // Whether a site that claims to have had a place may be right.
  static bool MayHaveForgotten(const core::RoundState& state, const core::SiteId& site) {
    return IsFull(state) && !state.sites.contains(site);
  }

  void Note(const core::SiteId& site, int64_t now_ms) { since_ms_.try_emplace(site, now_ms); }
  void IsBack(const core::SiteId& site) { since_ms_.erase(site); }

  bool HasRoom(const core::RoundState& state) const { return !IsFull(state) || Longest(state); }
  // Gives a name up for a newcomer's; the newcomer's stays begin above all earlier numbers, so that a name that comes
  // back cannot be in an earlier stay. Needs HasRoom, and a newcomer that is not among the sites.
  core::SiteId GiveUp(core::RoundState& state, const core::SiteId& newcomer);

 private:
  std::optional<core::SiteId> Longest(const core::RoundState& state) const;

  std::map<core::SiteId, int64_t> since_ms_;  // since when each name has been gone, as far as known here
};

using TokensPerStep = std::function<int64_t(const core::SiteId&)>;  // a site's tokens per step; null or 0: unknown

struct RoundSettings {
  core::SyncConfig sync;
  core::MembershipConfig membership;
  core::Shard shard;
  core::ValuesConfig values = {.gate = 0};
  TokensPerStep max_tokens_per_step = nullptr;
  core::Step steps = 0;    // at which the run ends; 0: it has no such end
  int64_t run_tokens = 0;  // at which the run ends; 0: it has no such end
};

// Whether the site takes part in rounds: it has its place in the schedule, and its contributions are accepted.
inline bool Counts(const core::SiteRecord& record) { return core::IsActive(record.state) && !record.quarantined; }

struct RunFacts {
  // A site's control stream, as far as this process knows.
  struct Link {
    bool connected = false;
    int64_t deadline_ms = 0;
    bool completing = false;
    std::vector<core::Version> completed_at;  // the versions when it was first completing in this stay
    bool cut_off = false;                     // the site reports, but has not heard from us for long
    bool merged = false;                      // a contribution of this stay was merged
    int64_t entered_ms = 0;
    int64_t gave_ms = 0;        // for a draining site: when it last contributed, or was asked to leave
    core::Step entry_step = 0;  // the step sent to it on entry; reports of earlier steps predate its arrival
    std::string standing_still;
    std::string process, former;  // the process whose stream it is, and the one whose it was before
    int64_t rival_ms = 0;         // since when another process asks again and again; 0: none does
    int64_t rival_asked_ms = 0;   // when that process asked last
  };

  RunFacts(const RoundSettings& its_settings, core::RoundState its_state, int64_t its_now_ms);

  RoundSettings settings;  // the newest, for what takes effect at once; shard and sync never change
  const core::FragmentSchedule schedule;
  core::RoundState state;
  int64_t now_ms;                      // the time of the latest event
  std::map<core::SiteId, Link> links;  // links of the sites that are not gone: MemberRules
  // Names whose stays end by their lease, one after the other, with nothing merged or after less than a lease: such a
  // stay costs the others more than it gives. MemberRules.
  struct CrashLoop {
    int stays = 0;
    int64_t until_ms = 0;  // while others train, the site enters no earlier
  };
  std::map<core::SiteId, CrashLoop> crash_loops;
  bool seeded_here;   // the shard's own fragments have their initial parameters: LeadRules, ShardRules
  bool held = false;  // sites should hold before their next step, and no round closes: Holds
  // The sites that were in the run of a state that may lack its end, and have not joined since. One of them may hold a
  // version that a round would make anew, so that none closes before they have, or that time.
  std::set<core::SiteId> unseen;
  int64_t unseen_until_ms = 0;
  // By fragment, the sites whose contribution to the open round was refused, and why: ValueRules.
  std::vector<std::map<core::SiteId, std::string>> refused;

  // The settings as of the fragment's open round, for what it merges and how.
  const RoundSettings& Of(core::FragmentId fragment) const;
  void TakeOver(const SettingsChanged& changed);
  // A longer lease holds at once, a shorter one once the change holds for all rounds: sites have heard of it then.
  int64_t lease_ms() const;

  bool synchronous() const { return settings.sync.mode == core::SyncMode::kSynchronous; }
  int num_fragments() const { return schedule.num_fragments(); }

  bool AwaitsUnseen() const { return !unseen.empty() && now_ms < unseen_until_ms; }
  bool InSession(const core::SiteId& site, const core::SessionId& session) const;
  bool IsCompleting(const core::SiteId& site) const;
  // Whether the site sends nothing more and this round may have its last contribution: a site says so once in a stay.
  bool ClosesItsLast(const core::SiteId& site, core::FragmentId fragment) const;
  bool AnyJoining() const;
  int NumActive() const;                          // active sites that Counts() accepts
  std::vector<core::SiteId> ActiveSites() const;  // in bytewise order, with those in quarantine
  // Whether the round is among the last of the run, or of a site that waits for it in order to leave: fewer than
  // min_quorum sites then close it, since no further site may ever come. A draining site counts, too: in synchronous
  // mode it may have to wait for the update before it can end.
  bool Ending(core::FragmentId fragment) const;

 private:
  // The changed settings, in the order of the changes: the last one whose version has come holds.
  struct Change {
    std::vector<core::Version> versions;  // each fragment's first version with these settings
    RoundSettings settings;
  };
  RoundSettings first_;
  std::vector<Change> changes_;
};

}  // namespace causeway::server
