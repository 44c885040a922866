#include "worker/ranks/temporary_files.h"

#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"

namespace causeway::worker {

absl::StatusOr<std::string> FolderForTemporaryFiles() {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::temp_directory_path(error);
  if (!error) return folder.string();
  const char* given = std::getenv("TMPDIR");
  return absl::NotFoundError(
      absl::StrCat("TMPDIR=", given == nullptr ? "" : given, ": expected a folder, got none (", error.message(), ")"));
}

}  // namespace causeway::worker
