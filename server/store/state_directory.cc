#include "server/store/state_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/statvfs.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "formats/atomic_file.h"

namespace causeway::server {

namespace {

// Folders that a state has; a file of one of these names is not a state's.
constexpr const char* kFolders[] = {"snapshots", "segments", "log"};

absl::Status CheckNothingForeign(const std::string& directory) {
  std::error_code error;
  const auto is_file = [&](const std::string& path) {
    return std::filesystem::exists(path, error) && !std::filesystem::is_directory(path, error);
  };
  if (is_file(directory)) {
    return absl::FailedPreconditionError(
        absl::StrCat("--state_dir: expected a folder, got the file ", directory, "; name a folder, which is made"));
  }
  for (const char* name : kFolders) {
    if (!is_file(absl::StrCat(directory, "/", name))) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("--state_dir: ", directory, " holds a file named ", name,
                     ", which no coordinator has written: expected a folder of its own. Move that file away, or name "
                     "another folder; nothing was changed"));
  }
  return absl::OkStatus();
}

}  // namespace

std::string AfterFailure(const std::string& state_dir) {
  std::error_code error;
  if (std::filesystem::exists(state_dir + "/log", error) || error) {
    return "what was acknowledged is on the disk, unless a sync has failed; the next start goes on from there";
  }
  return absl::StrCat("--state_dir=", state_dir,
                      " is gone, or what was in it: restore a backup, or start on an empty "
                      "directory with --rebuild_from_sites, which takes the state from the sites");
}

absl::StatusOr<std::unique_ptr<StateDirectory>> StateDirectory::Open(const std::string& directory) {
  RETURN_IF_ERROR(CheckNothingForeign(directory));
  for (const char* folder : {"", "/snapshots", "/segments"}) {
    const absl::Status made = formats::MakePrivateFolder(directory + folder);
    if (!made.ok()) return absl::PermissionDeniedError(absl::StrCat("--state_dir: ", std::string(made.message())));
  }
  ASSIGN_OR_RETURN(formats::FileDescriptor lock, formats::LockFolder("--state_dir", directory, "coordinator"));
  RETURN_IF_ERROR(formats::SyncFolderOf(directory + "/lock"));
  RETURN_IF_ERROR(formats::SyncFolderOf(directory));
  return std::unique_ptr<StateDirectory>(new StateDirectory(directory, std::move(lock)));
}

absl::Status StateDirectory::CheckRoom(int64_t bytes, int64_t min_free_bytes) const {
  if (min_free_bytes == 0) return absl::OkStatus();
  struct statvfs disk;
  if (::statvfs(path_.c_str(), &disk) != 0) return formats::FileError("measure the free space of", path_);
  const auto free = static_cast<int64_t>(disk.f_bavail * disk.f_frsize);
  if (free - bytes >= min_free_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("--state_dir: the disk of ", path_, " has ", free,
                                                   " bytes free and ", bytes, " are to be written; expected ",
                                                   min_free_bytes, " to stay free (checkpoint.min_free_bytes)"));
}

absl::Status WriteAddresses(const std::string& state_dir, const std::string& grpc, const std::string& http) {
  const nlohmann::json addresses = {{"grpc", grpc}, {"http", http}};
  return formats::WriteFileAtomically(state_dir + "/addresses.json", addresses.dump() + "\n");
}

}  // namespace causeway::server
