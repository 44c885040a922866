// A run in virtual time: the rules of the sites and of the coordinator, and between them a network that delays, cuts
// and repeats, a coordinator that restarts from its saved state, an operator. After each event the promises of the
// rules are held against what happened. Everything follows from the seed.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <string>
#include <tuple>
#include <vector>

#include "server/rounds/round_table.h"
#include "tests/server/rounds/simulated_site.h"

namespace causeway::server {

class SimulatedRun {
 public:
  explicit SimulatedRun(uint64_t seed);

  // Churn until so many rounds are decided, then peace, in which the run has to get on, then its end. Empty, or the
  // first promise that was broken.
  std::string Run(int64_t rounds);

  std::string Describe() const;  // the rules, for a failure
  int64_t rounds() const { return rounds_; }
  int64_t events() const { return events_; }
  int64_t lost_fragments() const { return lost_fragments_; }
  const std::map<std::string, int>& drops() const { return drops_; }  // by reason: which rules were met

 private:
  enum class Kind {
    kTick,
    kChaos,
    kResume,
    kStep,  // of a site, from here on
    kHeartbeat,
    kJoin,
    kReady,
    kSeed,
    kHeal,
    kArrive,     // a contribution at the coordinator
    kSiteEvent,  // something that happens to the site
  };
  struct Event {
    int64_t at_ms = 0;
    uint64_t order = 0;  // of events at one time
    Kind kind = Kind::kTick;
    int site = -1;
    uint64_t life = 0;
    uint64_t transfers = 0;  // of a transfer: void when the link has dropped it
    bool is_transfer = false;
    uint64_t stream = 0;  // what comes on this control stream is void when there is another one; 0: on none
    worker::Tag tag = {};
    core::Admitted contribution = {};
    std::shared_ptr<const worker::SiteEvent> happens;

    friend bool operator<(const Event& a, const Event& b) {  // the first is on top
      return std::tie(a.at_ms, a.order) > std::tie(b.at_ms, b.order);
    }
  };
  struct Waiting {
    int64_t work = 0;
    bool orphan = false;  // its site is not in any more, or has joined anew
  };
  using Key = std::tuple<core::SiteId, core::FragmentId>;

  uint64_t Random(uint64_t below);
  bool Chance(uint64_t percent) { return Random(100) < percent; }
  void Schedule(int64_t in_ms, Kind kind, int site = -1);
  void Push(Event event);
  void RunEvent();
  bool RunUntil(const char* what, int64_t longest_ms, bool (SimulatedRun::*reached)() const);
  bool GoalReached() const;
  bool AllRoundsReached() const;
  bool Ended() const;
  void Expect(bool holds, const std::string& what);

  // Sites: the process and its step loop.
  void StartProcess(int i, std::optional<worker::SiteFacts> checkpoint);
  void OnStep(int i);
  void GoOn(int i);  // carries out the step thread's actions, and takes the next step unless the rules let it wait
  void LeaveRun(int i, bool finished);
  void LoseWork(SimulatedSite& site);  // with the process
  void LoseFragment(SimulatedSite& site, core::FragmentId p);
  void Orphan(const SimulatedSite& site, core::FragmentId p);

  // Sites: their rules, and what follows from them.
  void Tell(int i, const worker::SiteEvent& event);
  void TellLater(int i, int64_t in_ms, worker::SiteEvent event);
  void TellOnStream(int i, worker::SiteEvent event);
  void Do(int i, const worker::SiteAction& action);
  void DoOnStepThread(int i, const worker::SiteAction& action);
  void Send(int i, const worker::action::Upload& upload, int64_t in_ms);
  void Deliver(int i, core::FragmentId p, int64_t in_ms);  // what it asked for, if it is there
  void OnTaken(int i, core::FragmentId p);

  // The network.
  bool InSession(const SimulatedSite& site) const;
  void TryJoin(int i);
  void OnReady(int i);
  void OnArrive(const Event& event);
  void OnHeartbeat(int i);
  void Report(int i);

  // Churn.
  void Chaos();
  void Die(int i);
  void RestartFromCheckpoint(int i);
  void Cut(int i);
  void Heal(int i);
  void RestartCoordinator();
  void PauseRun();
  void TellHeld();
  void StopRun();
  void ResumeRun();
  void Disconnect(SimulatedSite& site);
  void MakePeace();
  void EndRun();
  void DrainSite(SimulatedSite& site);
  void FinishAll();

  // What the table decides.
  void Take(const Actions& actions);
  void Take(const RequestSeed& action);
  void Take(const Enter& action);
  void Take(const CloseRound& action);
  void Take(const Dropped& action);
  void Take(const Forgotten&) {}  // there are never as many names
  void CheckDistance(const CloseRound& close);
  void CheckPromises();

  int IndexOf(const core::SiteId& name) const { return name[0] - 'a'; }

  const uint64_t seed_;
  uint64_t draws_ = 0;
  const RoundRules rules_;
  const bool storm_;  // much fails, and messages overtake each other
  const core::FragmentSchedule schedule_;
  const core::RunConfig config_;  // of the sites
  RoundTable table_;
  std::vector<SimulatedSite> sites_;
  std::priority_queue<Event> queue_;
  uint64_t pushed_ = 0;
  int64_t now_ms_ = 0;
  bool peace_ = false;
  bool ending_ = false;
  bool draining_all_ = false;
  std::string failure_;

  int64_t goal_ = 0;
  std::vector<core::Version> goals_;
  int64_t rounds_ = 0;
  int64_t events_ = 0;
  std::map<std::string, int> drops_;
  int64_t lost_fragments_ = 0;  // θ started from the anchor

  // The ledger.
  int64_t done_ = 0;
  int64_t merged_ = 0;
  int64_t lost_ = 0;
  std::map<Key, std::pair<core::Version, Waiting>> waiting_;  // admitted, not merged
  std::map<Key, core::Version> last_admitted_;
  struct Closed {
    int64_t at_ms = 0;
    std::vector<CloseRound::Contributor> contributors;
  };
  std::vector<std::vector<Closed>> closed_;  // of each fragment, by base version
  std::vector<int64_t> closed_ms_;           // by this coordinator process; −1 = none
  int64_t last_closed_ms_ = -1;
};

}  // namespace causeway::server
