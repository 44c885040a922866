#include "ctl/history_command.h"

#include <cstdio>
#include <set>
#include <tuple>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "core/check.h"
#include "core/clock.h"
#include "core/text.h"
#include "ctl/figures_text.h"
#include "ctl/program.h"
#include "ctl/standard_streams.h"

ABSL_FLAG(std::string, kind, "", "history: events of this kind alone, like command");
ABSL_FLAG(std::string, since, "", "history: 2026-11-27, 2026-11-27T10:00:00Z, or how long ago: 90s, 10m, 2h, 3d");
ABSL_FLAG(bool, follow, false, "history: goes on with what happens, until Ctrl-C");

namespace causeway::ctl {
namespace {

constexpr int64_t kFollowMs = 1000;

// In Unix milliseconds; 0: from the beginning.
absl::StatusOr<int64_t> Since(const std::string& text, int64_t now_ms) {
  if (text.empty()) return 0;
  absl::Duration ago;
  std::string days = text;
  int64_t whole = 0;
  if (days.ends_with('d') && absl::SimpleAtoi(days.substr(0, days.size() - 1), &whole) && whole >= 0) {
    return now_ms - whole * absl::ToInt64Milliseconds(absl::Hours(24));
  }
  if (absl::ParseDuration(text, &ago) && ago >= absl::ZeroDuration()) return now_ms - absl::ToInt64Milliseconds(ago);
  absl::Time time;
  for (const char* form : {"%Y-%m-%d", "%Y-%m-%d %H:%M:%S", absl::RFC3339_full}) {
    if (absl::ParseTime(form, text, &time, nullptr)) return absl::ToUnixMillis(time);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--since: expected a date (UTC), a time such as 2026-11-27T10:00:00Z, or how long ago (90s, 10m, 2h, "
      "3d), got ",
      core::Quoted(text)));
}

// For an answer without an event: which kinds and sites the run's history has, where one was asked for that it has not.
absl::Status SayWhatThereIs(Client& client, const std::string& kind, const std::string& site) {
  std::set<std::string> kinds, sites;
  int64_t after_id = 0;
  RETURN_IF_ERROR(client.ForEachEvent("", &after_id, [&](const v1::HistoryEvent& event) {
    kinds.insert(core::InOneLine(event.kind()));
    if (!event.site().empty()) sites.insert(core::InOneLine(event.site()));
  }));
  for (const auto& [flag, asked, there] : {std::tuple("--kind", &kind, &kinds), std::tuple("--site", &site, &sites)}) {
    if (asked->empty() || there->contains(*asked)) continue;
    std::fprintf(stderr, "note: no event of %s=%s; there are: %s\n", flag, core::InOneLine(*asked).c_str(),
                 there->empty() ? "none" : absl::StrJoin(*there, ", ").c_str());
  }
  return absl::OkStatus();
}

}  // namespace

bool FollowsHistory() { return absl::GetFlag(FLAGS_follow); }

absl::Status RunHistoryCommand(Client& client, const std::string& site, bool json) {
  ASSIGN_OR_RETURN(const int64_t since_ms, Since(absl::GetFlag(FLAGS_since), core::SystemClock().UnixMs()));
  bool any = false;
  const auto show = [&](const v1::HistoryEvent& event) {
    if (event.unix_ms() < since_ms || (!site.empty() && event.site() != site)) return;
    any = true;
    std::printf("%s\n", (json ? HistoryJson(event) : core::Printable(HistoryText(event))).c_str());
  };
  int64_t after_id = 0;
  bool answered = false;
  do {
    const absl::Status status = client.ForEachEvent(absl::GetFlag(FLAGS_kind), &after_id, show);
    if (!status.ok() && (!answered || !absl::IsUnavailable(status))) return status;
    answered |= status.ok();
  } while (FlushStandardOutput() && FollowsHistory() && !WaitForStopSignal(kFollowMs));
  return any || FollowsHistory() ? absl::OkStatus() : SayWhatThereIs(client, absl::GetFlag(FLAGS_kind), site);
}

}  // namespace causeway::ctl
