// The commands of causewayctl, and what each says of itself. A flag's own help says which commands it is for
// (command_flags.h).
#pragma once

#include <set>
#include <string>
#include <vector>

namespace causeway::ctl {

struct CommandText {
  const char* purpose;
  const char* name;   // "plan pipeline"
  const char* usage;  // "--schedule=NAME … | --check=FILE"
  const char* says;
  bool asks = true;  // a coordinator
};

const std::vector<CommandText>& CommandTexts();
std::set<std::string> CommandNames();  // first words

std::string CommandList();  // by purpose, for a terminal of 80 columns
std::string FullUsage();    // of --helpfull
// With the flags of that command alone, for 80 columns. `words`: what was typed, of which the first one or two name a
// command; empty: they do not.
std::string CommandHelp(const std::vector<std::string>& words);

// "unknown command 'sttaus'; the nearest is status (causewayctl lists all)".
std::string UnknownCommand(const std::string& word);

}  // namespace causeway::ctl
