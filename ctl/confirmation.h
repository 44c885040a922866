// stop and rollback end or undo what all sites of a run do: the person says that this run is meant.
//
//   causewayctl stop atlas      by its name
//   causewayctl stop --yes      a script
//   causewayctl stop            at a terminal: asks for the name
#pragma once

#include <istream>
#include <string>

#include "absl/status/status.h"

namespace causeway::ctl {

struct Confirmation {
  std::string command;      // "stop"
  std::string consequence;  // "ends the run for all its sites"
  std::string run;          // its name
  std::string given;        // what the person called it; "": nothing
  bool yes = false;
};

// Asks on standard error, and reads the answer from `person`; null: there is none to ask. INVALID_ARGUMENT: not
// confirmed, with what would have been.
absl::Status Confirm(const Confirmation& confirmation, std::istream* person);

}  // namespace causeway::ctl
