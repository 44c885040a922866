// A shard beyond the first: follows the membership of shard 0, ends no lease and admits no site, and closes the rounds
// of its own fragments by the same rules. One owner at a time.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "server/rounds/run_events.h"
#include "server/rounds/run_facts.h"

namespace causeway::server {

class ShardRules {
 public:
  ShardRules(RunFacts& facts, core::SiteId seeder) : facts_(facts), seeder_(std::move(seeder)) {}

  // Whether shard 0 has announced this stay of the site; if not, the answer is `AskAgain`.
  bool Knows(const JoinRequest& request) const;
  static JoinDecision AskAgain();
  void Accepted(const core::SiteId& site, Actions& actions) const;  // repeats messages that the site may have missed

  // A new membership, in this order: Ended, sites whose stay has ended; Unknown, names that shard 0 has given up,
  // unless a contribution waits here; Take, which takes the membership over and returns the sites that enter.
  std::vector<Dropped> Ended(const core::Membership& membership) const;
  std::vector<core::SiteId> Unknown(const core::Membership& membership) const;
  std::vector<core::SiteId> Take(const core::Membership& membership);
  std::vector<core::SiteId> Released(const core::Membership& membership) const;  // from quarantine, before Take
  Enter Place(const core::SiteId& site) const;
  // The initial parameters are requested by every shard that learns of the seeder; shard 0 requests its own part.
  bool IsNews(const core::SiteId& seeder, const std::vector<Dropped>& ended) const;
  void AskForSeed(Actions& actions) const;

  Actions Seeded() {
    facts_.state.seeded |= facts_.seeded_here;
    return {};
  }
  ShardReport Report(const core::SiteId& stranded) const;                        // for shard 0
  static std::string WhyWaiting() { return "shard 0 has not started the run"; }  // before the start

 private:
  RunFacts& facts_;
  core::SiteId seeder_;  // the initial parameters were requested from it
};

}  // namespace causeway::server
