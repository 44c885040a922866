// Plays a script of events to the rules of a run and writes what comes of each below it. A file of testdata/ is such a
// script with what it wrote: a rule is tested by reading that it says so again.
//
//   settings min_sites=2          a new run; names are those of rules_text.cc
//   arrive a b                    each joins, the initial parameters are there, and it is ready
//   => training                   the run's state, or a round's, where it has changed
//   10 contribute a b base=0      each in turn, 10 ms after the begin: checked, then admitted or refused
//   -> close fragment=0 …         an action
//
// A session is "<site>-1" and a time that of the event before, unless given. Lines that begin with # are comments.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/membership.h"
#include "server/rounds/run_events.h"
#include "server/rounds/run_facts.h"
#include "server/rounds/run_rules.h"
#include "tests/core/script.h"

namespace causeway::server {

// The events of a run and the decisions of its rules as text: one line for each, read back by the same names.
//
//   120 report a session=a-1 step=3 completing=1 : why its training stands still
//   close fragment=0 base=4 from=a@4*100,b@3*100 sites=a,b : all 2 active sites have contributed
//
// Numbers are written so that they are read back bit for bit.

std::string RealText(double value);  // the shortest that is read back bit for bit
std::string TextOf(const RoundSettings& settings);
std::string TextOf(const Action& action);
std::string TextOf(const JoinDecision& decision);
std::string TextOf(const absl::Status& status);
// Several lines, each ended; the members of a membership and the parts of a state are indented.
std::string TextOf(const core::Membership& membership);
std::string TextOf(const core::RoundState& state);
std::string TextOf(const ShardReport& report);

RoundSettings SettingsOf(const core::ScriptLine& line);
core::Admitted AdmittedOf(const core::ScriptLine& line);
// Adds what an indented line says.
void AddTo(const core::ScriptLine& line, core::Membership& membership);
void AddTo(const core::ScriptLine& line, core::RoundState& state);

class RulesScript {
 public:
  // The script's lines, each followed by what came of it; outcomes that it contains are left out.
  std::string Play(const std::string& script);

  const RunRules& rules() const { return *rules_; }

 private:
  void Do(const core::ScriptLine& line);
  void DoFor(const std::string& verb, const std::string& site, const core::ScriptLine& line);
  bool Ask(const std::string& verb, const core::ScriptLine& line);  // what changes nothing
  std::optional<RunEvent> EventOf(const std::string& verb, const std::string& site, const core::ScriptLine& line) const;
  void Round(const core::ScriptLine& line);
  void Contribute(const core::SiteId& site, const core::ScriptLine& line);
  void Handle(const RunEvent& event);
  void Say(const std::string& text) { said_ += "-> " + text + "\n"; }
  void SayWhatChanged();

  RoundSettings settings_;
  std::optional<RunRules> rules_;
  int64_t now_ms_ = 0;
  core::Membership membership_;  // of the last such lines
  core::RoundState state_;
  bool state_given_ = false;
  std::string said_;
  std::string last_state_;
  std::vector<std::string> last_rounds_;
  bool whole_ = false;  // `watch state`: the whole state after each event, by its digest
};

}  // namespace causeway::server
