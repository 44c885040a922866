// Which command a flag of causewayctl is for, by the flag's own help: "drain, release: the site's name".
#pragma once

#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace causeway::ctl {

// The commands that stand before a colon in a flag's help; empty: it is for all.
std::set<std::string> CommandsOf(const std::string& help, const std::set<std::string>& commands);

// A flag's help as the command of that name has it ("plan pipeline"): the clauses that name it before their colon, with
// what follows them. Empty text: the flag is for others, or for all.
struct FlagHelp {
  bool for_all = false;
  std::string text;
};
FlagHelp HelpFor(const std::string& command, const std::string& help, const std::set<std::string>& commands);

// INVALID_ARGUMENT if one of `given`, names of flags, is for other commands; says which ones `command` takes.
absl::Status CheckFlags(const std::string& command, const std::vector<std::string>& given,
                        const std::set<std::string>& commands);

}  // namespace causeway::ctl
