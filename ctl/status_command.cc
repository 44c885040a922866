#include "ctl/status_command.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "core/check.h"
#include "core/clock.h"
#include "core/text.h"
#include "ctl/program.h"
#include "ctl/standard_streams.h"
#include "ctl/status_text.h"
#include "ctl/text_table.h"

ABSL_FLAG(bool, watch, false, "status: again every second, until Ctrl-C");

namespace causeway::ctl {
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
