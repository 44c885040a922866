#include "ctl/status_command.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "core/check.h"
#include "core/clock.h"
#include "core/json_text.h"
#include "core/text.h"
#include "ctl/figures_text.h"
#include "ctl/program.h"
#include "ctl/standard_streams.h"

ABSL_FLAG(bool, watch, false, "status: again every second, until Ctrl-C");

namespace causeway::ctl {
namespace {

using nlohmann::json;

constexpr char kNoStatus[] = "not a status of this version";

std::string Colored(const std::string& text, const char* code, const TextForm& form) {
  return form.color ? absl::StrCat("\033[", code, "m", text, "\033[0m") : text;
}

bool IsActive(const json& site) { return site.at("state") == "training" || site.at("state") == "draining"; }

std::string AlarmLines(const json& status, const TextForm& form) {
  std::string lines;
  for (const json& alarm : status.value("alarms", json::array())) {
    const bool critical = alarm.at("severity") == "critical";
    const std::string text = absl::StrCat(critical ? "✕ " : "! ", alarm.at("name").get<std::string>(), ": ",
                                          alarm.at("text").get<std::string>());
    absl::StrAppend(&lines, Colored(core::Printable(Wrapped(text, form.width)), critical ? "31" : "33", form));
  }
  return lines.empty() ? "" : lines + "\n";
}

// A key of the run's section `run`; 0: absent.
int64_t OfRun(const json& status, const char* key) {
  const json config = status.value("config", json());
  return config.is_object() && config.contains("run") ? config.at("run").value(key, int64_t{0}) : 0;
}

// ", 41 % of 4e+09 tokens, about 3m left", for a run with run.tokens, as the site that is ahead knows it.
std::string TokensText(const json& status, int64_t of) {
  double done = 0, rate = 0;
  for (const json& site : status.at("sites")) {
    done = std::max(done, site.value("run_tokens", 0.0));
    if (IsActive(site)) rate += site.value("tokens_per_s", 0.0);
  }
  const double share = std::min(1.0, done / static_cast<double>(of));
  std::string text = absl::StrFormat(", %.0f %% of %.4g tokens", 100 * share, static_cast<double>(of));
  if (rate > 0 && share < 1) {
    const absl::Duration left = absl::Seconds(std::ceil((static_cast<double>(of) - done) / rate));
    absl::StrAppend(&text, ", about ", absl::FormatDuration(left), " left");
  }
  return text;
}

// "step 1200 of 2000, about 3m left": of the site that is behind.
std::string StepText(const json& status) {
  if (const int64_t tokens = OfRun(status, "tokens"); tokens > 0) return TokensText(status, tokens);
  const int64_t steps = OfRun(status, "steps");
  const json* behind = nullptr;
  double left_s = 0;
  for (const json& site : status.at("sites")) {
    if (!IsActive(site)) continue;
    const int64_t step = site.at("step");
    if (behind == nullptr || step < behind->at("step").get<int64_t>()) behind = &site;
    const double tokens = site.value("tokens", 0.0), rate = site.value("tokens_per_s", 0.0);
    if (step > 0 && steps > step && tokens > 0 && rate > 0) {
      left_s = std::max(left_s, static_cast<double>(steps - step) * tokens / static_cast<double>(step) / rate);
    }
  }
  if (behind == nullptr) return "";
  std::string text = absl::StrCat(", step ", behind->at("step").get<int64_t>());
  if (steps > 0) absl::StrAppend(&text, " of ", steps);
  if (left_s > 0) absl::StrAppend(&text, ", about ", absl::FormatDuration(absl::Seconds(std::ceil(left_s))), " left");
  return text;
}

// The run's loss, or those of the sites and why the run has none.
std::string EvalLines(const json& status, size_t width) {
  const json& loss = status.at("eval_loss");
  std::string lines = Wrapped(
      loss.is_null() ? absl::StrCat("eval loss - (", status.value("eval_loss_reason", ""), ")")
                     : absl::StrCat("eval loss ", NumberText(loss.at("start")), " → ", NumberText(loss.at("latest"))),
      width);
  const json by_site = status.value("eval_loss_by_site", json::object());  // outlives the loop over it
  std::vector<std::string> sites;
  for (const auto& [site, one] : by_site.items()) {
    sites.push_back(absl::StrCat(site, " ", NumberText(one.at("loss"))));
  }
  if (sites.empty()) return lines;
  return absl::StrCat(lines,
                      Wrapped(absl::StrCat("eval loss of each site's own data: ", absl::StrJoin(sites, ", ")), width));
}

std::string SiteTable(const json& status, size_t width) {
  const std::vector<TextColumn> columns = {
      {"site", 0, true}, {"state", 0, true}, {"ranks", 8}, {"step", 1},    {"tokens/s", 4},  {"loss", 2},
      {"busy", 3},       {"up", 9},          {"down", 10}, {"up rate", 6}, {"down rate", 7}, {"", 5, true, true}};
  std::vector<std::vector<std::string>> rows;
  for (const json& site : status.at("sites")) {
    rows.push_back({site.at("name"), StateText(site), absl::StrCat(site.at("ranks").at("ranks").get<int64_t>()),
                    absl::StrCat(site.at("step").get<int64_t>()), NumberText(site.at("tokens_per_s")),
                    NumberText(site.at("loss")), PercentText(site.at("utilization")), BytesText(site.at("up_bytes")),
                    BytesText(site.at("down_bytes")), BytesText(site.at("up_bytes_per_s")) + "/s",
                    BytesText(site.at("down_bytes_per_s")) + "/s", site.at("reason")});
  }
  return TextTable(columns, rows, width);
}

std::string FragmentTable(const json& status, size_t width) {
  const std::vector<TextColumn> columns = {{"fragment", 0},     {"parameters", 3},  {"version", 0},
                                           {"digest", 4, true}, {"state", 1, true}, {"", 2, true, true}};
  std::vector<std::vector<std::string>> rows;
  for (const json& fragment : status.at("fragments")) {
    std::string reason = fragment.at("reason");
    const auto contributors = fragment.at("contributors").get<std::vector<std::string>>();
    if (!contributors.empty()) reason = absl::StrCat("has ", absl::StrJoin(contributors, ", "), "; ", reason);
    rows.push_back({absl::StrCat(fragment.at("id").get<int>()), absl::StrCat(fragment.at("parameters").get<int64_t>()),
                    absl::StrCat(fragment.at("version").get<int64_t>()), fragment.at("digest"), fragment.at("state"),
                    reason});
  }
  return TextTable(columns, rows, width);
}

}  // namespace

absl::StatusOr<std::string> StatusText(const std::string& text, const TextForm& form) try {
  ASSIGN_OR_RETURN(const json status, core::ParseJson<json>(text, kNoStatus));
  const std::string reason = status.at("reason");
  const std::string run = absl::StrFormat(
      "run %s: %s%s%s, %s parameters, codec %s up, %s down, up for %s", status.at("run_id").get<std::string>(),
      status.at("state").get<std::string>(), reason.empty() ? "" : " (" + reason + ")", StepText(status),
      MillionsText(status.at("parameters")), status.at("codec").at("up").get<std::string>(),
      status.at("codec").at("down").get<std::string>(), NumberText(status.at("uptime_s"), " s"));
  return absl::StrCat(
      AlarmLines(status, form),
      core::Printable(absl::StrCat(Wrapped(run, form.width), EvalLines(status, form.width), "\n",
                                   SiteTable(status, form.width), "\n", FragmentTable(status, form.width))));
} catch (const json::exception& error) {
  return absl::InvalidArgumentError(absl::StrCat(kNoStatus, ": ", error.what()));
}

absl::StatusOr<StatusCheck> CheckOfStatus(const std::string& text) try {
  ASSIGN_OR_RETURN(const json status, core::ParseJson<json>(text, kNoStatus));
  const std::string state = status.at("state"), reason = status.at("reason");
  StatusCheck check{.code = state == "waiting" ? 1 : 0, .line = ""};
  std::vector<std::string> said;
  for (const json& alarm : status.value("alarms", json::array())) {
    check.code = std::max(check.code, alarm.at("severity") == "critical" ? 2 : 1);
    said.push_back(absl::StrCat(alarm.at("name").get<std::string>(), ": ", alarm.at("text").get<std::string>()));
  }
  const auto training = std::ranges::count_if(status.at("sites"), IsActive);
  constexpr const char* kWords[] = {"OK", "WARNING", "CRITICAL"};
  check.line = absl::StrCat(kWords[check.code], " - run ", status.at("run_id").get<std::string>(), ": ",
                            said.empty() ? "" : absl::StrJoin(said, "; ") + "; ", state,
                            reason.empty() ? "" : absl::StrCat(" (", reason, ")"), ", ", training,
                            training == 1 ? " site trains" : " sites train", StepText(status), " | sites=", training);
  return check;
} catch (const json::exception& error) {
  return absl::InvalidArgumentError(absl::StrCat(kNoStatus, ": ", error.what()));
}

namespace {

constexpr int64_t kWatchMs = 1000;
constexpr size_t kLeastWidth = 40;
constexpr char kClear[] = "\033[H\033[2J";

TextForm FormOfTerminal() {
  winsize size{};
  if (isatty(STDOUT_FILENO) == 0 || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return {};
  return {.width = std::max<size_t>(kLeastWidth, size.ws_col), .color = std::getenv("NO_COLOR") == nullptr};
}

// Where the screen can be cleared; elsewhere a line comes when it is another one.
bool IsScreen() {
  const char* const terminal = std::getenv("TERM");
  return isatty(STDOUT_FILENO) != 0 && terminal != nullptr && std::string_view(terminal) != "dumb";
}

std::string TimeOf(int64_t unix_ms) {
  return absl::FormatTime("%H:%M:%S", absl::FromUnixMillis(unix_ms), absl::LocalTimeZone());
}

std::string Now() { return TimeOf(core::SystemClock().UnixMs()); }

absl::StatusOr<std::string> LineOf(const absl::StatusOr<std::string>& answer) {
  if (!answer.ok()) return absl::StrCat("no answer: ", core::InOneLine(std::string(answer.status().message())));
  ASSIGN_OR_RETURN(const StatusCheck check, CheckOfStatus(*answer));
  return core::InOneLine(check.line.substr(0, check.line.rfind(" | ")));  // without the figure for plugins
}

// The screen while there is no answer: why, since when, and the last answer.
class Watched {
 public:
  void Answered(const std::string& text) {
    text_ = text;
    answered_ms_ = core::SystemClock().UnixMs();
  }
  std::string WithoutAnswer(const absl::Status& why, const TextForm& form) const {
    const int64_t now_ms = core::SystemClock().UnixMs();
    const std::string said = core::InOneLine(std::string(why.message()));
    if (answered_ms_ == 0) return Wrapped(absl::StrCat("no answer yet: ", said), form.width);
    return absl::StrCat(Wrapped(absl::StrFormat("no answer for %d s; what follows is from %s (%s)",
                                                (now_ms - answered_ms_) / 1000, TimeOf(answered_ms_), said),
                                form.width),
                        "\n", text_);
  }
  bool answered() const { return answered_ms_ > 0; }
  const std::string& text() const { return text_; }  // of the last answer

 private:
  std::string text_;
  int64_t answered_ms_ = 0;
};

}  // namespace

bool WatchesStatus() { return absl::GetFlag(FLAGS_watch); }
bool ChecksStatus() { return std::ranges::count(GivenFlags(), "check") > 0; }

absl::Status RunStatusCommand(Client& client, bool json) {
  const bool watch = WatchesStatus(), screen = IsScreen();
  Watched watched;
  std::string printed;
  do {
    const TextForm form = FormOfTerminal();
    const absl::StatusOr<std::string> answer = client.StatusJson();
    if (!answer.ok() && (!watch || (!watched.answered() && !absl::IsUnavailable(answer.status())))) {
      return answer.status();  // a refusal is no outage
    }
    if (json) {
      if (answer.ok()) std::printf("%s\n", answer->c_str());
      continue;
    }
    if (answer.ok()) {
      ASSIGN_OR_RETURN(const std::string text, StatusText(*answer, form));
      watched.Answered(text);
    }
    if (watch && !screen) {
      ASSIGN_OR_RETURN(const std::string line, LineOf(answer));
      if (line != std::exchange(printed, line)) std::printf("%s  %s\n", Now().c_str(), line.c_str());
    } else if (answer.ok()) {
      std::printf("%s%s", watch ? absl::StrCat(kClear, Now(), "\n").c_str() : "", watched.text().c_str());
    } else {
      std::printf("%s%s", kClear, watched.WithoutAnswer(answer.status(), form).c_str());
    }
  } while (FlushStandardOutput() && watch && !WaitForStopSignal(kWatchMs));
  return absl::OkStatus();
}

int CheckStatus(Client& client) {
  const absl::StatusOr<std::string> answer = client.StatusJson();
  const absl::StatusOr<StatusCheck> check = answer.ok() ? CheckOfStatus(*answer) : answer.status();
  if (!check.ok()) {
    std::printf("UNKNOWN - %s\n", core::InOneLine(std::string(check.status().message())).c_str());
    return kUnknown;
  }
  std::printf("%s\n", core::InOneLine(check->line).c_str());
  return check->code;
}

}  // namespace causeway::ctl
