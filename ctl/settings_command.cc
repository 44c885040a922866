#include "ctl/settings_command.h"

#include <algorithm>
#include <cstdio>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "core/text.h"
#include "formats/settings.h"

ABSL_FLAG(int64_t, at_step, 0, "set: the first step with the change; 0: the first that no site can have passed");
ABSL_FLAG(bool, dry_run, false, "set: says what would be, and changes nothing");
ABSL_FLAG(bool, cancel, false, "set: changes that are still to come do not");

ABSL_DECLARE_FLAG(bool, yes);

namespace causeway::ctl {
namespace {

void PrintMarkdown() {
  std::printf(
      "# Settings\n\nEach key of run.yaml. Made by `causewayctl settings --markdown`; a test compares the two. The\n"
      "commented example is [deploy/run.yaml](../deploy/run.yaml).\n\n**Changes**: when a change of it in a running "
      "run holds\n([operating.md](operating.md#changing-a-running-run)).\n"
      "*set*: by `causewayctl set`; what else could change cannot yet.\n");
  std::string section = "-";
  for (const formats::Setting& setting : formats::Settings()) {
    const size_t dot = setting.key.find('.');
    const std::string of = dot == std::string::npos ? "" : setting.key.substr(0, dot);
    if (of != section) {
      std::printf("\n## %s\n\n| key | default | accepted | changes | |\n|---|---|---|---|---|\n",
                  of.empty() ? "The run" : absl::StrCat("`", of, "`").c_str());
      section = of;
    }
    const auto cell = [](const std::string& text) { return absl::StrReplaceAll(text, {{"|", "\\|"}}); };
    std::printf("| `%s` | %s | %s | %s%s | %s |\n", setting.key.c_str(),
                setting.standard.empty() ? "" : absl::StrCat("`", cell(setting.standard), "`").c_str(),
                cell(setting.expected).c_str(), formats::HoldsText(setting.holds), setting.settable ? ", *set*" : "",
                cell(setting.says).c_str());
  }
}

void PrintRevision(const v1::SettingsRevision& revision, const char* why) {
  std::vector<std::string> versions;
  for (int p = 0; p < revision.versions_size(); ++p) {
    versions.push_back(absl::StrCat("fragment ", p, " from version ", revision.versions(p)));
  }
  std::printf("revision %lld, from step %lld on%s (rounds: %s)\n", static_cast<long long>(revision.number()),
              static_cast<long long>(revision.step()), why, absl::StrJoin(versions, ", ").c_str());
  for (const std::string& change : revision.changes()) std::printf("  %s\n", core::Printable(change).c_str());
}

}  // namespace

absl::Status RunSetCommand(Client& client, const std::vector<std::string>& arguments) {
  v1::ChangeSettingsRequest request;
  request.set_at_step(absl::GetFlag(FLAGS_at_step));
  request.set_dry_run(absl::GetFlag(FLAGS_dry_run));
  request.set_cancel(absl::GetFlag(FLAGS_cancel));
  request.set_yes(absl::GetFlag(FLAGS_yes));
  for (size_t i = 1; i < arguments.size(); ++i) {
    const size_t equals = arguments[i].find('=');
    if (equals == 0 || equals == std::string::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("set: expected KEY=VALUE, such as inner.lr=1e-4, got ", core::Quoted(arguments[i])));
    }
    v1::SettingChange& change = *request.add_changes();
    change.set_key(arguments[i].substr(0, equals));
    change.set_value(arguments[i].substr(equals + 1));
  }
  if (request.changes().empty() != request.cancel()) {
    return absl::InvalidArgumentError(absl::StrCat("set: expected KEY=VALUE at least once, or --cancel alone, got ",
                                                   request.cancel() ? "both" : "none"));
  }
  ASSIGN_OR_RETURN(const v1::ChangeSettingsResponse done, client.ChangeSettings(request));
  std::printf("%s", request.dry_run() ? "nothing is changed: " : "");
  PrintRevision(done.revision(), "");
  for (const v1::SettingsRevision& later : done.pending()) PrintRevision(later, ", as was to come");
  return absl::OkStatus();
}

void PrintSettings(bool markdown) {
  if (markdown) return PrintMarkdown();
  size_t widest = 0;
  for (const formats::Setting& setting : formats::Settings()) widest = std::max(widest, setting.key.size());
  for (const formats::Setting& setting : formats::Settings()) {
    std::printf("%-*s  %s; %s (%s)\n", static_cast<int>(widest), setting.key.c_str(),
                setting.standard.empty() ? "no default" : setting.standard.c_str(), setting.says.c_str(),
                setting.expected.c_str());
  }
}

}  // namespace causeway::ctl
