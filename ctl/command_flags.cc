#include "ctl/command_flags.h"

#include "absl/flags/reflection.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace causeway::ctl {

std::set<std::string> CommandsOf(const std::string& help, const std::set<std::string>& commands) {
  std::set<std::string> found;
  for (const absl::string_view clause : absl::StrSplit(help, ';')) {
    const size_t colon = clause.find(':');
    if (colon == absl::string_view::npos) continue;
    for (const absl::string_view word : absl::StrSplit(clause.substr(0, colon), absl::ByAnyChar(", "))) {
      if (commands.contains(std::string(word))) found.insert(std::string(word));
    }
    if (found.empty()) return {};  // it begins with what it is for all
  }
  return found;
}

FlagHelp HelpFor(const std::string& command, const std::string& help, const std::set<std::string>& commands) {
  FlagHelp found{.for_all = CommandsOf(help, commands).empty(), .text = ""};
  bool own = false;
  for (const absl::string_view clause : absl::StrSplit(help, "; ")) {
    const size_t colon = clause.find(": ");
    std::vector<std::string> names, others;
    if (colon != absl::string_view::npos) names = absl::StrSplit(clause.substr(0, colon), ", ");
    bool begins = false, is_own = false;
    for (const std::string& name : names) {
      const bool of_a_command = commands.contains(name.substr(0, name.find(' ')));
      begins |= of_a_command;
      is_own |= name == command;
      if (!of_a_command) others.push_back(name);
    }
    if (begins) own = is_own;
    if (!own) continue;
    absl::StrAppend(
        &found.text, found.text.empty() ? "" : "; ",
        begins ? absl::StrCat(absl::StrJoin(others, ", "), others.empty() ? "" : ": ", clause.substr(colon + 2))
               : std::string(clause));
  }
  return found;
}

absl::Status CheckFlags(const std::string& command, const std::vector<std::string>& given,
                        const std::set<std::string>& commands) {
  const auto flags = absl::GetAllFlags();
  for (const std::string& name : given) {
    const std::set<std::string> of = CommandsOf(flags.at(name)->Help(), commands);
    if (of.empty() || of.contains(command)) continue;
    std::set<std::string> takes;
    for (const auto& [other, flag] : flags) {
      if (CommandsOf(flag->Help(), commands).contains(command)) takes.insert(absl::StrCat("--", other));
    }
    return absl::InvalidArgumentError(absl::StrCat(command, " takes ",
                                                   takes.empty() ? "no flags of its own" : absl::StrJoin(takes, ", "),
                                                   "; --", name, " is for ", absl::StrJoin(of, ", ")));
  }
  return absl::OkStatus();
}

}  // namespace causeway::ctl
