// The status for people: alarms, the run, its sites and fragments.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace causeway::ctl {

struct TextForm {
  size_t width = 0;    // of the terminal, in columns, from 40 on; 0: everything fits
  bool color = false;  // the terminal has colours
};

// From the JSON of GET /status. INVALID_ARGUMENT if it is not that.
absl::StatusOr<std::string> StatusText(const std::string& json, const TextForm& form = {});

// One line as monitoring plugins print it, and their exit status: 0 fine, 1 a warning, 2 critical.
struct StatusCheck {
  int code = 0;
  std::string line;  // "CRITICAL - run demo: digest_mismatch: …"
};
absl::StatusOr<StatusCheck> CheckOfStatus(const std::string& json);

}  // namespace causeway::ctl
