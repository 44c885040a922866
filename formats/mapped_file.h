// A whole file in memory, read-only: its pages come from disk when they are read, and all programs that map it share
// them. A file that is truncated while it is mapped, or whose disk fails, ends the program where a lost page is read:
//
//   causeway-worker: train.bin: changed while it is used: …          exit code 2, instead of a SIGBUS without a word
//
// Move-only, thread-safe.
#pragma once

#include <signal.h>

#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace causeway::formats {

class MappedFile {
 public:
  // INVALID_ARGUMENT for an empty file: it cannot be mapped.
  static absl::StatusOr<MappedFile> Map(const std::string& path);
  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept
      : bytes_(std::exchange(other.bytes_, {})), guarded_(std::exchange(other.guarded_, nullptr)) {}
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(guarded_, other.guarded_);
    return *this;
  }
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }

  // Ends the program as a lost page does, for a reader that finds other bytes than those that it has checked.
  [[noreturn]] void EndAsChanged() const;

 private:
  struct Guarded;  // what the signal's handler knows of a mapped file

  MappedFile(std::span<const std::byte> bytes, Guarded* guarded) : bytes_(bytes), guarded_(guarded) {}
  static void OnBusError(int signal, siginfo_t* info, void* context);
  [[noreturn]] static void End(const Guarded& file);

  std::span<const std::byte> bytes_;
  Guarded* guarded_ = nullptr;  // is never freed
};

}  // namespace causeway::formats
