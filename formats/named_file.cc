#include "formats/named_file.h"

#include <sys/stat.h>

#include <map>
#include <span>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/limits.h"
#include "core/mutex.h"
#include "core/text.h"
#include "formats/file_kind.h"
#include "formats/posix_file.h"

namespace causeway::formats {
namespace {

struct Faults {
  core::Mutex mutex;
  std::map<std::string, std::string> texts ABSL_GUARDED_BY(mutex);  // by file

  static Faults& OfProcess() {
    static Faults* const faults = new Faults;  // threads note theirs until the process ends
    return *faults;
  }
};

}  // namespace

absl::StatusOr<std::string> ReadTextFile(const std::string& path, int64_t max_bytes) {
  ASSIGN_OR_RETURN(const std::string contents, ReadFile(path, max_bytes));
  const auto bytes = std::as_bytes(std::span<const char>(contents));
  RETURN_IF_ERROR(RefuseKind(path, RecognizeText(bytes), "text", FileUse::kModel));
  return std::string(core::WithoutByteOrderMark(contents));
}

absl::StatusOr<std::string> ReadNamedFile(const std::string& flag, const std::string& path) {
  absl::StatusOr<std::string> text = ReadFile(path, core::kMaxCredentialFileBytes);
  if (text.ok()) return text;
  std::string fault(text.status().message());
  if (const size_t at = fault.find(path + ": "); at != std::string::npos) fault.erase(0, at + path.size() + 2);
  if (absl::EndsWith(fault, "a folder"))
    absl::StrAppend(&fault, " (Docker makes one where the file of a bind mount is missing)");
  return absl::InvalidArgumentError(absl::StrCat("--", flag, "=", path, ": ", fault));
}

bool NoteNamedFile(const std::string& file, const absl::Status& status) {
  Faults& faults = Faults::OfProcess();
  const core::MutexLock lock(faults.mutex);
  if (status.ok()) return faults.texts.erase(file) > 0;
  std::string& text = faults.texts[file];
  return std::exchange(text, std::string(status.message())) != text;
}

std::vector<std::string> NamedFileFaults() {
  Faults& faults = Faults::OfProcess();
  const core::MutexLock lock(faults.mutex);
  std::vector<std::string> texts;
  for (const auto& [file, text] : faults.texts) texts.push_back(text);
  return texts;
}

// The stamp is taken first: a file that changes meanwhile is reread.
absl::StatusOr<std::optional<std::string>> WatchedFile::ReadIfChanged() {
  constexpr int64_t kNsPerS = 1'000'000'000;
  struct stat status {};
  Stamp stamp;
  if (::stat(path_.c_str(), &status) == 0)
    stamp = {status.st_mtim.tv_sec * kNsPerS + status.st_mtim.tv_nsec, status.st_size, status.st_ino};
  if (stamp_ == stamp && !failed_) return std::nullopt;
  if (stamp_ && stamp.inode == stamp_->inode && stamp.bytes < stamp_->bytes) {
    const int64_t now_ms = clock_->NowMs();
    if (!shorter_ms_) shorter_ms_ = now_ms;
    if (now_ms - *shorter_ms_ < kSettlesMs) return std::nullopt;
  }
  absl::StatusOr<std::string> text = ReadNamedFile(flag_, path_);
  failed_ = !text.ok();
  RETURN_IF_ERROR(text.status());
  stamp_ = stamp;
  shorter_ms_.reset();
  return *std::move(text);
}

}  // namespace causeway::formats
