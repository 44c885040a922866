// The process's environment as an argument, so that tests bring their own.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace causeway::core {

// Returns the value of an environment variable; nullopt if it is not set.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;
std::optional<std::string> ProcessEnvironment(const std::string& name);

// TMPDIR, or /tmp: where processes put files that no other machine needs. NOT_FOUND if there is no such folder; names
// the variable.
absl::StatusOr<std::string> FolderForTemporaryFiles();

}  // namespace causeway::core
