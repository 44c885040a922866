// The commands of causewayctl and their help texts. A flag's own help says which commands it is for.
#pragma once

#include <istream>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace causeway::ctl {

struct CommandText {
  const char* purpose;
  const char* name;   // "plan pipeline"
  const char* usage;  // "--schedule=NAME … | --check=FILE"
  const char* says;
  bool asks = true;  // whether it calls a coordinator
};

const std::vector<CommandText>& CommandTexts();
std::set<std::string> CommandNames();  // the first word of each command

std::string CommandList();  // grouped by purpose, for a terminal of 80 columns
std::string FullUsage();    // the text of --helpfull
// The help of one command, with its flags alone, for 80 columns. `words`: the words typed, of which the first one or
// two name the command. Empty: they name none.
std::string CommandHelp(const std::vector<std::string>& words);

// "unknown command 'sttaus'; the nearest is status (causewayctl lists all)".
std::string UnknownCommand(const std::string& word);

// Which command a flag of causewayctl is for, by the flag's own help: "drain, release: the site's name".

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

// stop and rollback end or undo what all sites of a run do: the person says that this run is meant.
//
//   causewayctl stop atlas      by its name
//   causewayctl stop --yes      a script
//   causewayctl stop            at a terminal: asks for the name
struct Confirmation {
  std::string command;      // "stop"
  std::string consequence;  // "ends the run for all its sites"
  std::string run;          // the run's name
  std::string given;        // the name that the person gave; "": none
  bool yes = false;
};

// Asks on standard error, and reads the answer from `person`; null: there is no person to ask. INVALID_ARGUMENT: not
// confirmed; says what confirms it.
absl::Status Confirm(const Confirmation& confirmation, std::istream* person);

}  // namespace causeway::ctl
