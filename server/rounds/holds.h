// The reasons for which a run is held: no round closes, and sites hold before their next step. An operator's pause is
// part of the run's state; the others are this process's own, and end when an operator resumes the run.
#pragma once

#include <map>
#include <set>
#include <string>

#include "server/rounds/run_events.h"
#include "server/rounds/run_facts.h"

namespace causeway::server {

class Holds {
 public:
  explicit Holds(RunFacts& facts) : facts_(facts) { Update(); }

  void Raise(Hold hold, const std::string& why);  // unless an operator has resumed the run despite one
  bool raised() const { return !why_.empty(); }
  void Settle();  // an operator has resumed the run
  void Void();    // it is stopped: sites have to leave
  void Pause(bool paused);

  std::string Reason() const;  // empty: the run is not held

 private:
  void Update() { facts_.held = facts_.state.paused || raised(); }

  RunFacts& facts_;
  std::map<Hold, std::string> why_;
  std::set<Hold> settled_;
};

}  // namespace causeway::server
