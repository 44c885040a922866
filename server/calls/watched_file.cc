#include "server/calls/watched_file.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "core/limits.h"

namespace causeway::server {

// The stamp is taken first: a file that changes meanwhile is reread.
absl::StatusOr<std::optional<std::string>> WatchedFile::ReadIfChanged() {
  constexpr int64_t kNsPerS = 1'000'000'000;
  const auto wrong = [this](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat(Text(), ": ", what));
  };
  struct stat status {};
  Stamp stamp;
  const int error = stat(path_.c_str(), &status) == 0 ? 0 : errno;
  if (error == 0) {
    stamp = {status.st_mtim.tv_sec * kNsPerS + status.st_mtim.tv_nsec, status.st_size, status.st_ino};
  }
  if (stamp_ == stamp) return std::nullopt;
  stamp_ = stamp;
  if (error != 0) return wrong(std::strerror(error));
  if (stamp.bytes > static_cast<int64_t>(core::kMaxCredentialFileBytes)) {
    return wrong(absl::StrCat("expected at most ", core::kMaxCredentialFileBytes, " bytes, got ", stamp.bytes));
  }
  std::ifstream file(path_, std::ios::binary);
  if (!file) return wrong(std::strerror(errno));
  return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
}

}  // namespace causeway::server
