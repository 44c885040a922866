// Shard 0, which is the only one in most runs: decides which sites are in, from which one the initial parameters come,
// and when a site has its place in the schedule. One owner at a time.
//
//   shard 0   Join, Ready, Leave, leases ─► membership() ─► ShardRules   shard i
//             Report ◄── seeded, versions, stranded site ── report()
#pragma once

#include <string>
#include <vector>

#include "server/rounds/run_events.h"
#include "server/rounds/run_facts.h"

namespace causeway::server {

class LeadRules {
 public:
  LeadRules(RunFacts& facts, core::SiteId seeder);

  // Why a site that is in the run with this session begins anew nevertheless; nullptr: its session goes on.
  const char* WhyAnew(const JoinRequest& request) const;
  std::string WhyClosed() const;  // why no new process may join, whatever its name; empty: it may
  void Begin(const JoinRequest& request);
  // Whether its state is void. Repeated until the site has its place: it may have missed the first message.
  bool IsVoid(const JoinRequest& request) const;
  void AskForSeed(const core::SiteId& joined, Actions& actions);

  Actions Ready(const SiteReady& event);
  Actions EnterReady();                          // enters the waiting sites that may enter now
  bool IsReady(const core::SiteId& site) const;  // the site holds the anchors and has no place yet
  void Left(const core::SiteId& site) { std::erase(ready_, site); }

  std::vector<Dropped> Unwelcome() const;  // sites that still join a stopped run

  Actions Seeded();
  void BeginAnotherModel();
  Actions Report(const ShardReported& event);
  bool IsStranded(const ShardReport& report) const;  // the stranded site is still in that stay

  std::string WhyWaiting() const;       // why the run has not started
  core::Membership membership() const;  // the membership that the other shards follow

 private:
  bool HeardOfAllShards() const;
  std::string MissingShards() const;
  bool MayEnter(const core::SiteId& site);
  Actions StartIfEnough();
  Enter EnterNow(const core::SiteId& site);

  RunFacts& facts_;
  std::vector<core::SiteId> ready_;   // sites waiting for the start
  core::SiteId seeder_;               // the initial parameters were requested from it
  std::vector<bool> heard_of_shard_;  // since the start of this process; shard 0 counts as heard
  std::vector<bool> seeded_shard_;    // according to each shard's last report
};

}  // namespace causeway::server
