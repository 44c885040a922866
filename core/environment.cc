#include "core/environment.h"

#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"

namespace causeway::core {

std::optional<std::string> ProcessEnvironment(const std::string& name) {
  const char* const value = std::getenv(name.c_str());
  if (value == nullptr) return std::nullopt;
  return value;
}

absl::StatusOr<std::string> FolderForTemporaryFiles() {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::temp_directory_path(error);
  if (!error) return folder.string();
  return absl::NotFoundError(absl::StrCat("TMPDIR=", ProcessEnvironment("TMPDIR").value_or(""),
                                          ": expected a folder, got none (", error.message(), ")"));
}

}  // namespace causeway::core
