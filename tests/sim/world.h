// One simulated run: a service, its faults for a number of events, then no more faults, and what must become of it.
//
//   faults   kills, stalls, cuts, blocked links, sick disks, sites that drain     … events
//            in some runs each coordinator has a standby: it is handed over, or its machine is lost
//            in some runs crashes damage files, too; where a start refuses, an operator restores the file that it names
//   calm     every site enters and trains, every fragment's round closes           in time, or the run has failed
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/sim/machine.h"
#include "tests/sim/promises.h"
#include "tests/sim/service.h"

namespace causeway::sim {

// Whether a lease ends only after the coordinator has run for as long without a word of the site: time in which it
// stood still for more than a quarter of the lease does not count.

class Leases {
 public:
  explicit Leases(Clock::Duration lease) : lease_(lease) {}

  // The coordinator was handed its progress, which says that the site itself had heard something `at` that time.
  void Heard(const std::string& site, Clock::TimePoint at, Clock::TimePoint came);
  // It is to stand still from now on: in place of a stall before, which is over then.
  void StoodStill(Clock::TimePoint from, Clock::TimePoint to);
  void Died(Clock::TimePoint at);
  // The journal has from that time that the lease ended. It says what is wrong; "": nothing.
  std::string Ended(const std::string& site, Clock::TimePoint at) const;

 private:
  struct Word {
    Clock::TimePoint came;
    Clock::TimePoint heard;  // the latest of all that came by then
  };

  const Clock::Duration lease_;
  std::map<std::string, std::deque<Word>> heard_;  // the newest last
  std::vector<std::pair<Clock::TimePoint, Clock::TimePoint>> stalls_;
};

class World {
 public:
  World(uint64_t seed, const std::string& folder);
  ~World();

  // Why it failed; "": it did not.
  std::string Run(int64_t events);
  std::string Summary() const;
  Machine& machine() { return machine_; }

 private:
  void TryAnotherModel();
  void TakeModel(const core::SyntheticConfig& refused);
  void StayCalm();
  void Resume();
  void Stall(Program& program, Clock::Duration time);
  void WatchLeases();
  void Damage(Program& program, const std::string& mostly);
  void Die(const SiteProgram& site, const CoordinatorProgram& hub, int64_t one_in);
  bool TrainsAfterDeaths(Clock::Duration round);
  void BeginCalm();
  void NextFault();
  void OneFault();
  bool Trains() const;
  std::string WhoWaits() const;
  std::string Broken() const;
  Program& AnyProgram();
  CoordinatorProgram& LeaderOf(int shard);
  CoordinatorProgram& StandbyOf(const CoordinatorProgram& leader);
  void LoseLeader(CoordinatorProgram& leader, CoordinatorProgram& standby);
  void WaitToPromote(CoordinatorProgram& leader, CoordinatorProgram& standby, Clock::TimePoint until);
  void WatchLeaders();

  Machine machine_;
  Network network_;
  core::RunConfig config_;
  core::SyntheticConfig model_, earlier_model_;
  int shards_ = 1;
  int64_t fault_every_ms_ = 0;                             // at most
  bool damages_ = false;                                   // crashes damage files
  bool mirrored_ = false;                                  // each coordinator has a standby
  std::deque<Coordinators> coordinators_;                  // of each shard
  std::vector<std::unique_ptr<CoordinatorProgram>> hubs_;  // shard by shard, first the one that leads at first
  std::vector<std::unique_ptr<SiteProgram>> sites_;
  std::unique_ptr<Promises> promises_;
  std::unique_ptr<Leases> leases_;  // at shard 0, which ends them
  std::set<int64_t> welcomed_;      // control streams there, by number
  int64_t last_event_ = 0;          // of its history that was looked at
  std::map<std::string, int64_t> counts_;
  std::map<std::string, std::string> ends_;  // the last of each program
  std::vector<std::string> wrong_ends_;
  bool faults_on_ = true;
  std::vector<core::Version> calm_versions_;  // when the faults ended
  std::map<std::string, core::Step> calm_steps_;
};

}  // namespace causeway::sim
