// Weeks of churn in virtual time: sites join, contribute out of order, leave, die and come back, the coordinator
// restarts from its saved state; after every event the promises of the rules are held against what happened.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "core/random.h"
#include "tests/server/rounds/table_for_test.h"

namespace causeway::server {
namespace {

using core::FragmentId;
using core::SiteId;
using core::Version;

class Simulation {
 public:
  Simulation(const RoundRules& rules, uint64_t seed) : rules_(rules), seed_(seed), table_(rules, {}, 0) {}

  void RandomEvent() {
    now_ms_ += Random(100);
    Heartbeats();
    const SiteId site(1, static_cast<char>('a' + Random(5)));
    const uint64_t kind = Random(100);
    if (kind < 60) ContributeSomething(site);
    if (kind >= 60 && kind < 85) JoinAs(site);
    if (kind >= 85 && kind < 90) Take(table_.Leave(site, sessions_[site], /*finished=*/false, "leaves"));
    if (kind >= 90 && kind < 95 && silent_.insert(site).second) table_.Disconnected(site, sessions_[site], now_ms_);
    if (kind >= 95 && kind < 97) now_ms_ += kLeaseMs / 2;
    if (kind >= 97) table_ = RoundTable(rules_, core::RoundState(table_.state()), now_ms_);
    Take(table_.Tick(now_ms_));
  }

  // From here on nobody fails: everyone who can contribute does. How many rounds of all fragments are decided.
  Version RunInPeace(int turns) {
    silent_.clear();
    for (const auto& [site, record] : table_.state().sites) JoinAs(site);
    JoinAs("a");
    const Version before = LeastVersion();
    for (int turn = 0; turn < turns; ++turn) {
      for (char name = 'a'; name < 'f'; ++name) {
        JoinAs(SiteId(1, name));
        for (FragmentId p = 0; p < rules_.schedule.num_fragments(); ++p) ContributeTo(SiteId(1, name), p);
      }
    }
    return LeastVersion() - before;
  }

  int rounds() const { return rounds_; }
  int strandings() const { return strandings_; }

 private:
  using Key = std::tuple<SiteId, FragmentId, Version>;

  uint64_t Random(uint64_t below) { return core::HashCombine(seed_, draws_++) % below; }

  Version LeastVersion() const {
    return *std::min_element(table_.state().versions.begin(), table_.state().versions.end());
  }

  bool Entered(const SiteId& site) const { return entries_.contains(site); }

  void Heartbeats() {
    for (const auto& [site, session] : sessions_) {
      if (!silent_.contains(site)) table_.Heard(site, session, now_ms_);
    }
  }

  void JoinAs(const SiteId& site) {
    if (Entered(site) && !silent_.contains(site)) return;
    if (!Entered(site)) sessions_[site] = site + std::to_string(draws_++);
    const std::vector<Version> held = Entered(site) ? entries_[site].versions : std::vector<Version>();
    const JoinDecision decision = table_.Join(site, sessions_[site], held, now_ms_);
    Take(decision.actions);
    if (!decision.accepted) {
      ASSERT_GT(decision.retry_after_ms, 0) << decision.reason;
      return;
    }
    silent_.erase(site);
    if (decision.resumed) return;
    entries_.erase(site);
    Take(table_.Seeded());
    Take(table_.Ready(site, sessions_[site]));
  }

  void ContributeSomething(const SiteId& site) {
    ContributeTo(site, static_cast<FragmentId>(Random(rules_.schedule.num_fragments())));
  }

  // As a site may: it has sent all that was due before, and waits for the update of each fragment by its apply step.
  void ContributeTo(const SiteId& site, FragmentId p) {
    if (!Entered(site) || silent_.contains(site)) return;
    const Version base = std::max(table_.state().versions[p], entries_[site].first_versions[p]);
    const core::Step step = rules_.schedule.SendStep(p, base);
    for (FragmentId q = 0; q < rules_.schedule.num_fragments(); ++q) {
      if (rules_.schedule.ApplyStep(q, table_.state().versions[q]) < step) return;
    }
    const absl::Status status = table_.CheckContribution(site, sessions_[site], p, base);
    if (!status.ok()) return;
    ASSERT_TRUE(admitted_.insert({site, p, base}).second) << site << " was admitted twice";
    waiting_.insert({site, p, base});
    Take(table_.Admit(site, p, base));
  }

  void Take(const Actions& actions) {
    for (const Enter& enter : ActionsOf<Enter>(actions)) entries_[enter.site] = enter.entry;
    for (const Dropped& dropped : ActionsOf<Dropped>(actions)) {
      entries_.erase(dropped.site);
      strandings_ += dropped.reason.find("nobody is left") != std::string::npos;
    }
    for (const CloseRound& close : ActionsOf<CloseRound>(actions)) {
      ++rounds_;
      ASSERT_FALSE(close.contributors.empty());
      ASSERT_TRUE(std::is_sorted(close.contributors.begin(), close.contributors.end()));
      ASSERT_EQ(close.base, decided_[close.fragment]++) << "rounds of a fragment are decided one after the other";
      for (const SiteId& site : close.contributors) {
        ASSERT_EQ(waiting_.erase({site, close.fragment, close.base}), 1u) << site << " merged, but not (once) admitted";
      }
    }
    for (FragmentId p = 0; p < rules_.schedule.num_fragments(); ++p) {
      ASSERT_EQ(table_.state().versions[p], decided_[p]);
      for (const auto& [site, fragment, base] : waiting_) {
        ASSERT_GE(base, decided_[fragment]) << "the admitted contribution of " << site << " was lost";
      }
    }
  }

  const RoundRules rules_;
  const uint64_t seed_;
  uint64_t draws_ = 0;
  int64_t now_ms_ = 0;
  RoundTable table_;
  std::map<SiteId, core::SessionId> sessions_;
  std::map<SiteId, core::Entry> entries_;  // of the sites that are in
  std::set<SiteId> silent_;                // dead or cut off
  std::set<Key> admitted_;
  std::set<Key> waiting_;  // admitted, not merged
  std::map<FragmentId, Version> decided_;
  int rounds_ = 0;
  int strandings_ = 0;
};

TEST(RoundSimulation, NothingIsLostMergedTwiceOrStuck) {
  int strandings = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const int fragments = 1 + static_cast<int>(seed % 4);
    const int64_t delay = static_cast<int64_t>(seed * 3 % 8);
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", P " << fragments << ", delay " << delay);
    Simulation simulation(Rules(8, fragments, delay), seed);
    for (int event = 0; event < 3000; ++event) {
      simulation.RandomEvent();
      if (testing::Test::HasFatalFailure()) return;
    }
    EXPECT_GT(simulation.rounds(), 20);
    EXPECT_GE(simulation.RunInPeace(20), 5) << "sites that all contribute do not get on";
    if (testing::Test::HasFailure()) return;
    strandings += simulation.strandings();
  }
  EXPECT_GT(strandings, 0) << "the rarest rule was never met";
}

}  // namespace
}  // namespace causeway::server
