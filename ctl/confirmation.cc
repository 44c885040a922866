#include "ctl/confirmation.h"

#include <cstdio>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "core/text.h"

namespace causeway::ctl {

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
