// The sites' control streams and leases, and the names of those that are gone.
//
//   Join ─► joining ─ Ready ─► training ─ Leave or lease ended ─► gone
//
// One owner at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/rounds/run_events.h"
#include "server/rounds/run_facts.h"

namespace causeway::server {

class MemberRules {
 public:
  explicit MemberRules(RunFacts& facts);  // all leases start anew

  // `resumed`: the site continues its stay.
  void Connect(const core::SiteId& site, const std::string& process, bool resumed);
  void Disconnect(const core::SiteId& site);
  // Renews the lease, unless the training stands still. False: nothing else in the report counts.
  bool Report(const SiteReport& report);
  bool Completes(const SiteReport& report);  // whether `completing` has changed
  absl::Status Drain(const core::SiteId& site, const std::string& reason);
  void DrainAll(const std::string& reason);
  void End(const Dropped& dropped);

  std::vector<Dropped> Expired() const;  // the sites whose lease has ended
  void Contributed(const core::SiteId& site);
  void Merged(const core::SiteId& site);
  // The sites that were asked to leave and have contributed nothing for a lease, and for `stands_ms`.
  std::vector<Dropped> DrainsThatStand(int64_t stands_ms);
  void StoodStill(int64_t from_ms, int64_t to_ms);

  // ---- Names ----
  // Why another process may not join by this name, and when it may; no reason: now.
  JoinDecision WhyNameIsTaken(const core::SiteId& site) const;
  // Why a process that shows the site's session may not take the place of the process that is heard from; no reason: it
  // is that process, or none is heard from. It has to wait for a lease, since the other one may be about to end.
  JoinDecision WhyPlaceIsTaken(const JoinRequest& request);
  // Makes room for a site that joins. Returns the name of a gone site, if that name had to be given up for it.
  std::optional<core::SiteId> MakeRoomFor(const core::SiteId& site);
  void Follow(const core::SiteId& site, core::SiteState state);  // shard 0 has set this state
  void Forget(const core::SiteId& site);

 private:
  bool IsAlive(const RunFacts::Link& link) const;
  void BeginToLeave(const core::SiteId& site, core::SiteRecord& record, const std::string& reason);
  void NoteEnd(const Dropped& dropped);
  void Note(const core::SiteId& site) { gone_.Note(site, facts_.now_ms); }
  int64_t RanSince(int64_t since_ms) const;  // excluding the time in which the process stood still
  int64_t lease_ms() const { return facts_.lease_ms(); }

  RunFacts& facts_;
  GoneNames gone_;
  std::vector<std::pair<int64_t, int64_t>> stalls_ms_;  // (from, to) of the stalls within about the last lease
};

}  // namespace causeway::server
