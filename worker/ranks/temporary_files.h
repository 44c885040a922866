// Where a site's processes put files that no other machine needs.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace causeway::worker {

// TMPDIR, or /tmp. NOT_FOUND names the variable, if it leads to no folder.
absl::StatusOr<std::string> FolderForTemporaryFiles();

}  // namespace causeway::worker
