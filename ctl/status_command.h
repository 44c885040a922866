// causewayctl status: once, again every second, as JSON, or as one line for a monitor.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ctl/client.h"

namespace causeway::ctl {

// The status for people: alarms, the run, its sites and fragments.
struct TextForm {
  size_t width = 0;    // columns of the terminal, 40 or more; 0: everything fits
  bool color = false;  // the terminal has colours
};

// The text for the JSON of GET /status. INVALID_ARGUMENT if `json` is something else.
absl::StatusOr<std::string> StatusText(const std::string& json, const TextForm& form = {});

// One line as monitoring plugins print it, and their exit status: 0 fine, 1 a warning, 2 critical.
struct StatusCheck {
  int code = 0;
  std::string line;  // "CRITICAL - run demo: digest_mismatch: …"
};
absl::StatusOr<StatusCheck> CheckOfStatus(const std::string& json);

// With --watch the command goes on while the coordinator does not answer, and says since when.
absl::Status RunStatusCommand(Client& client, bool json);

bool WatchesStatus();  // --watch: the command runs until Ctrl-C
bool ChecksStatus();   // --check: the program ends with CheckStatus's exit status

inline constexpr int kUnknown = 3;  // the coordinator did not answer
int CheckStatus(Client& client);

}  // namespace causeway::ctl
