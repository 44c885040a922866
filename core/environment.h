// The process's environment as an argument, so that tests bring their own.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace causeway::core {

// A variable of the environment; none if it is not set.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;
std::optional<std::string> ProcessEnvironment(const std::string& name);

// TMPDIR, or /tmp: where processes put files that no other machine needs. NOT_FOUND names the variable, if it leads to
// no folder.
absl::StatusOr<std::string> FolderForTemporaryFiles();

}  // namespace causeway::core
