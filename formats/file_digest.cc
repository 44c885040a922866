#include "formats/file_digest.h"

#include <xxhash.h>

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/digest.h"
#include "formats/posix_file.h"

namespace causeway::formats {
namespace {

constexpr int64_t kPieceBytes = 1 << 20;

std::string Text(const FileDigest& digest) {
  return absl::StrCat(digest.bytes, " bytes with XXH3-64 ", core::DigestText(digest.hash));
}

}  // namespace

RunningDigest::RunningDigest() : state_(XXH3_createState()) {
  CHECK(state_ != nullptr && XXH3_64bits_reset(state_.get()) == XXH_OK);
}

void RunningDigest::Free::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

void RunningDigest::Add(std::span<const std::byte> bytes) {
  XXH3_64bits_update(state_.get(), bytes.data(), bytes.size());
  bytes_ += std::ssize(bytes);
}

FileDigest RunningDigest::value() const { return {.bytes = bytes_, .hash = XXH3_64bits_digest(state_.get())}; }

absl::StatusOr<FileDigest> DigestOfFile(const std::string& path) {
  ASSIGN_OR_RETURN(const FileDescriptor file, OpenRegularFile(path));
  ASSIGN_OR_RETURN(const int64_t size, FileSize(file, path));
  RunningDigest digest;
  std::vector<std::byte> piece(static_cast<size_t>(std::min(size, kPieceBytes)));
  for (int64_t at = 0; at < size; at += kPieceBytes) {
    const std::span<std::byte> bytes = std::span(piece).first(static_cast<size_t>(std::min(size - at, kPieceBytes)));
    RETURN_IF_ERROR(ReadAt(file, path, at, bytes));
    digest.Add(bytes);
  }
  return digest.value();
}

absl::Status CheckFile(const std::string& path, const FileDigest& expected) {
  ASSIGN_OR_RETURN(const FileDigest got, DigestOfFile(path));
  if (got == expected) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(path, " is damaged: expected ", Text(expected), ", got ", Text(got)));
}

}  // namespace causeway::formats
