// The events of a run and the decisions of its rules as text: one line for each, read back by the same names.
//
//   120 report a session=a-1 step=3 completing=1 : why its training stands still
//   close fragment=0 base=4 from=a@4*100,b@3*100 sites=a,b : all 2 active sites have contributed
//
// Numbers are written so that they are read back bit for bit.
#pragma once

#include <string>
#include <vector>

#include "core/membership.h"
#include "server/rounds/round_settings.h"
#include "server/rounds/run_events.h"
#include "tests/core/script.h"

namespace causeway::server {

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

}  // namespace causeway::server
