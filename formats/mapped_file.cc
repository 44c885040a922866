#include "formats/mapped_file.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/text.h"
#include "formats/posix_file.h"

namespace causeway::formats {

// A list that the handler walks while others add to it: nothing is ever taken off, and a place that became free is
// used again by the next file.
struct MappedFile::Guarded {
  std::atomic<bool> is_used{true};
  std::atomic<uintptr_t> begin{0}, end{0};  // both 0: not mapped
  std::string message;
  Guarded* next = nullptr;

  static Guarded* Take(std::string message);
  void Map(std::span<const std::byte> bytes) {
    end = reinterpret_cast<uintptr_t>(bytes.data() + bytes.size());
    begin = reinterpret_cast<uintptr_t>(bytes.data());
  }
  void Free() {
    end = 0;
    begin = 0;
    is_used = false;
  }
};

namespace {

std::atomic<void*> first_guarded{nullptr};
struct sigaction action_before;  // of who had SIGBUS

constexpr int kBadInput = 2;  // the exit code of programs for wrong input

}  // namespace

MappedFile::Guarded* MappedFile::Guarded::Take(std::string message) {
  for (auto* one = static_cast<Guarded*>(first_guarded.load()); one != nullptr; one = one->next) {
    if (one->is_used.exchange(true)) continue;
    one->message = std::move(message);
    return one;
  }
  auto* added = new Guarded{.message = std::move(message)};
  void* first = first_guarded.load();
  do {
    added->next = static_cast<Guarded*>(first);
  } while (!first_guarded.compare_exchange_weak(first, added));
  return added;
}

void MappedFile::End(const Guarded& file) {
  const std::string_view program = program_invocation_short_name;
  for (const std::string_view part : {program, std::string_view(file.message)}) {
    if (write(STDERR_FILENO, part.data(), part.size()) < 0) break;  // the exit code says it, too
  }
  _exit(kBadInput);
}

// Async-signal-safe.
void MappedFile::OnBusError(int signal, siginfo_t* info, void* context) {
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  for (auto* one = static_cast<Guarded*>(first_guarded.load()); one != nullptr; one = one->next) {
    if (address >= one->begin && address < one->end) End(*one);
  }
  if ((action_before.sa_flags & SA_SIGINFO) != 0) return action_before.sa_sigaction(signal, info, context);
  if (action_before.sa_handler != SIG_DFL && action_before.sa_handler != SIG_IGN) {
    return action_before.sa_handler(signal);
  }
  ::signal(SIGBUS, SIG_DFL);
  raise(SIGBUS);  // which ends the program when this returns
}

absl::StatusOr<MappedFile> MappedFile::Map(const std::string& path) {
  static std::once_flag handles;
  std::call_once(handles, [] {
    struct sigaction action = {};
    action.sa_sigaction = &MappedFile::OnBusError;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGBUS, &action, &action_before);
  });
  ASSIGN_OR_RETURN(const FileDescriptor file, OpenRegularFile(path));
  ASSIGN_OR_RETURN(const int64_t size, FileSize(file, path));
  if (size == 0) return absl::InvalidArgumentError(absl::StrCat(path, ": expected tokens, got an empty file"));
  void* memory = ::mmap(nullptr, static_cast<size_t>(size), PROT_READ, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED) return FileError("map", path);
  const std::span bytes(static_cast<const std::byte*>(memory), static_cast<size_t>(size));
  Guarded* const guarded = Guarded::Take(absl::StrCat(
      ": error: ", core::InOneLine(path), ": changed while it is used: expected the ", size,
      " bytes that it had when it was opened, as they were; write another file, and start with that one\n"));
  guarded->Map(bytes);
  return MappedFile(bytes, guarded);
}

void MappedFile::EndAsChanged() const { End(*guarded_); }

MappedFile::~MappedFile() {
  if (guarded_ != nullptr) guarded_->Free();
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace causeway::formats
