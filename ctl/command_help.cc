#include "ctl/command_help.h"

#include <algorithm>
#include <cstdio>

#include "absl/flags/reflection.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/text.h"
#include "ctl/figures_text.h"
#include "ctl/program.h"

namespace causeway::ctl {
namespace {

constexpr size_t kHelpColumns = 80;
constexpr size_t kFlagWidth = 18;  // of the column of flags; longer ones stand alone
constexpr char kWatch[] = "Watch a run", kSteer[] = "Steer a run", kTake[] = "Take what it has made",
               kPrepare[] = "Prepare a run", kPlan[] = "Plan";

// "  name              text", the text in a column of its own.
std::string Entry(const std::string& name, const std::string& text) {
  const std::string indent(kFlagWidth + 2, ' ');
  std::string begin = absl::StrFormat("  %-*s", static_cast<int>(kFlagWidth), name);
  if (begin.size() > indent.size()) begin += "\n" + indent;
  std::string lines = Wrapped(text, kHelpColumns - indent.size(), "");
  for (size_t at = lines.find('\n'); at + 1 < lines.size(); at = lines.find('\n', at + 1)) lines.insert(at + 1, indent);
  return begin + lines;
}

const CommandText* FindCommand(const std::vector<std::string>& words) {
  const CommandText* found = nullptr;
  for (const CommandText& command : CommandTexts()) {
    const std::string name = command.name;
    const bool two = name.find(' ') != std::string::npos;
    if (!words.empty() && (two ? words.size() > 1 && name == words[0] + " " + words[1] : name == words[0])) {
      if (found == nullptr || two) found = &command;
    }
  }
  return found;
}

}  // namespace

const std::vector<CommandText>& CommandTexts() {
  static const auto* const kTexts = new std::vector<CommandText>{
      {kWatch, "status", "[--watch | --json | --check]",
       "what the run does: once, every second, as JSON, or as one line for a monitor, with exit status 0 (fine), 1 (a "
       "warning), 2 (critical) or 3 (no answer)"},
      {kWatch, "history", "[--kind=KIND] [--site=SITE] [--since=TIME] [--follow]",
       "what happened, from the coordinator's journal, oldest first; of kind command: who has asked for what"},
      {kWatch, "report", "--out=FILE.html [--model=DIR] [--sample=FILE]",
       "the run as one HTML file: curves, tables, events (of all shards that --coordinator names), settings"},
      {kSteer, "set", "KEY=VALUE… [--at_step=STEP] [--dry_run] [--yes] | --cancel",
       "settings of the running run change, from a step and a round on that lie ahead; --cancel takes back what is "
       "still to come"},
      {kSteer, "pause", "", "no round closes, and sites hold before their next step"},
      {kSteer, "resume", "", "the run goes on"},
      {kSteer, "stop", "[RUN] [--yes]",
       "all sites finish what is in flight and leave; the run's name or --yes confirms it"},
      {kSteer, "drain", "--site=NAME", "a site finishes what is in flight and leaves"},
      {kSteer, "release", "--site=NAME | --all",
       "a site, or each that is in quarantine, leaves it and starts from the global parameters"},
      {kSteer, "rollback", "[RUN] --to=VERSION [--yes]",
       "the global parameters become those of that version again; sites start from them"},
      {kSteer, "promote", "--at=HOST:PORT [--leader_is_stopped]",
       "a standby leads the run from now on, from what it has; its leader is stopped before"},
      {kSteer, "standby", "--forget=HOST:PORT", "no start asks a standby any more that does not come back"},
      {kTake, "export", "--out=DIR [--assets=DIR] [--dtype=float32|bfloat16] [--overwrite] [--hook=COMMAND]",
       "the global parameters as a folder that Hugging Face's transformers load; of a run with shards from "
       "--coordinator=A,B,… in their order"},
      {kPrepare, "settings", "[--markdown]", "each setting of run.yaml: its default, and what it says", false},
      {kPrepare, "config-check", "FILE [--json]", "whether a run.yaml is right; --json prints the full config", false},
      {kPrepare, "init", "--placement=sites --shards_at=NAME=HOST:PORT,… --out=DIR [--config=FILE]",
       "a run whose coordinator is spread over its sites: run.yaml, and each site's one command", false},
      {kPlan, "plan", "[round] --config=FILE --link_mbit=… --rtt_ms=… --step_ms=… --sites=… [--hub_mbit=…] [--sweep]",
       "what a run will do to its links, before it is started; of model kind external with --coordinator, after the "
       "first site joined",
       false},
      {kPlan, "plan pipeline",
       "--schedule=NAME --devices=D --micro_batches=N | --check=FILE | --costs=FILE --devices=D --micro_batches=N | "
       "--costs=FILE --ranks=R --levels=FILE --batch=B",
       "a pipeline schedule's times, or whether a file of one is valid; the best schedule for measured costs; how many "
       "ranks for what",
       false},
      {kPlan, "plan partition", "--levels=FILE --parameters=P [--weights=LEVEL --gradients=LEVEL --optimizer=LEVEL]",
       "what ranks hold and move if a site's states are divided over its link levels", false},
      {kPlan, "plan what-if", "--trace=FILE [--factor=2] [--faster=RESOURCE=FACTOR,…] | --samples=FILE",
       "what a faster part would buy, and which part binds then", false},
  };
  return *kTexts;
}

std::set<std::string> CommandNames() {
  std::set<std::string> names;
  for (const CommandText& command : CommandTexts()) {
    const std::string name = command.name;
    names.insert(name.substr(0, name.find(' ')));
  }
  return names;
}

std::string CommandList() {
  std::string text = "causewayctl COMMAND …   (causewayctl COMMAND --help: its flags; --helpfull: all)\n";
  std::string purpose;
  for (const CommandText& command : CommandTexts()) {
    if (purpose != command.purpose) absl::StrAppend(&text, "\n", purpose = command.purpose, "\n");
    const std::string says = command.says;
    absl::StrAppend(&text, Entry(command.name, says.substr(0, says.find(';'))));
  }
  return absl::StrCat(text, "\nThe coordinator is that of --coordinator=HOST:PORT, 127.0.0.1:7077 without.\n");
}

std::string FullUsage() {
  std::string text;
  for (const CommandText& command : CommandTexts()) {
    absl::StrAppend(&text, "causewayctl ", command.name, *command.usage == 0 ? "" : " ", command.usage, "\n",
                    std::string(40, ' '), command.says, "\n");
  }
  return text;
}

std::string CommandHelp(const std::vector<std::string>& words) {
  const CommandText* const command = FindCommand(words);
  if (command == nullptr) return "";
  const std::string name = command->name;
  std::string own, common;
  for (const auto& [flag, help] : OwnFlags()) {
    const FlagHelp of = HelpFor(name, help, CommandNames());
    if (of.for_all && command->asks) absl::StrAppend(&common, common.empty() ? "" : " ", "--", flag);
    if (!of.text.empty()) absl::StrAppend(&own, Entry(absl::StrCat("--", flag), of.text));
  }
  std::string text =
      Wrapped(absl::StrCat("causewayctl ", name, *command->usage == 0 ? "" : " ", command->usage), kHelpColumns);
  absl::StrAppend(&text, "\n", Wrapped(command->says, kHelpColumns, ""), own.empty() ? "" : "\n", own);
  if (!common.empty()) absl::StrAppend(&text, "\n", Wrapped(absl::StrCat("All commands: ", common), kHelpColumns));
  return absl::StrCat(text, "\nExit status: 0 done, 1 failed, 2 wrong input, 3 refused, 5 no answer\n");
}

std::string UnknownCommand(const std::string& word) {
  const std::set<std::string> names = CommandNames();
  const auto nearest =
      std::ranges::min_element(names, {}, [&](const std::string& name) { return core::EditDistance(name, word); });
  const bool near = core::EditDistance(*nearest, word) <= std::max<size_t>(1, word.size() / 3);
  return absl::StrCat("unknown command ", core::Quoted(word), near ? absl::StrCat("; the nearest is ", *nearest) : "",
                      " (causewayctl --help lists them)");
}

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

absl::Status Confirm(const Confirmation& confirmation, std::istream* person) {
  const auto& [command, consequence, run, given, yes] = confirmation;
  if (yes || given == run) return absl::OkStatus();
  if (!given.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(command, ": expected the run's name, ", run, ", got ", core::Quoted(given)));
  }
  if (person == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        command, " ", consequence, ": expected the run's name, `causewayctl ", command, " ", run, "`, or --yes"));
  }
  std::fprintf(stderr, "%s %s. The run's name (%s), to go on: ", command.c_str(), consequence.c_str(), run.c_str());
  std::string answer;
  std::getline(*person, answer);
  if (absl::StripAsciiWhitespace(answer) == run) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(command, ": expected the run's name, ", run, ", got ", core::Quoted(answer), "; nothing was done"));
}

}  // namespace causeway::ctl
