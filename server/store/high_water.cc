#include "server/store/high_water.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <span>

#include "core/check.h"
#include "core/digest.h"
#include "formats/atomic_file.h"

namespace causeway::server {
namespace {

constexpr int kSlots = 2;
constexpr int64_t kSlotBytes = 4096;

struct Slot {
  uint64_t sequence;
  LogHash hash;
  uint64_t check;  // of all before
};
static_assert(sizeof(Slot) == 48);

uint64_t CheckOf(const Slot& slot) { return core::Xxh3(&slot, offsetof(Slot, check)); }

absl::StatusOr<std::array<Slot, kSlots>> ReadSlots(const formats::FileDescriptor& file, const std::string& path) {
  std::array<Slot, kSlots> slots = {};
  ASSIGN_OR_RETURN(const int64_t size, formats::FileSize(file, path));
  for (int i = 0; i < kSlots; ++i) {
    if (size < i * kSlotBytes + static_cast<int64_t>(sizeof(Slot))) continue;
    RETURN_IF_ERROR(formats::ReadAt(file, path, i * kSlotBytes, std::as_writable_bytes(std::span(&slots[i], 1))));
  }
  return slots;
}

bool IsWhole(const Slot& slot) { return slot.sequence != 0 && slot.check == CheckOf(slot); }

bool IsEmpty(const Slot& slot) {
  const Slot empty = {};
  return std::memcmp(&slot, &empty, sizeof(Slot)) == 0;
}

}  // namespace

absl::StatusOr<HighWater::Found> HighWater::Read(const std::string& path) {
  Found found;
  formats::FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_open() && errno != ENOENT) return formats::FileError("open", path);
  found.missing = !file.is_open();
  if (found.missing) return found;
  ASSIGN_OR_RETURN(const auto slots, ReadSlots(file, path));
  ASSIGN_OR_RETURN(const int64_t size, formats::FileSize(file, path));
  constexpr auto kWhole = (kSlots - 1) * kSlotBytes + static_cast<int64_t>(sizeof(Slot));
  found.damaged = size > 0 && size < kWhole;  // the last slot is written first
  for (int i = 0; i < kSlots; ++i) {
    const Slot& slot = slots[i];
    if (!IsWhole(slot)) {
      found.damaged += !IsEmpty(slot);
      if (!IsEmpty(slot)) found.damaged_at = i * kSlotBytes;
    } else if (slot.sequence > found.mark.sequence) {
      found.mark = {slot.sequence, slot.hash};
    }
  }
  return found;
}

absl::StatusOr<HighWater> HighWater::Open(const std::string& path) {
  formats::FileDescriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!file.is_open()) return formats::FileError("open", path);
  RETURN_IF_ERROR(formats::SyncFolderOf(path));
  ASSIGN_OR_RETURN(const auto slots, ReadSlots(file, path));
  // The later one stays until another is written.
  const bool second_is_later = IsWhole(slots[1]) && (!IsWhole(slots[0]) || slots[0].sequence < slots[1].sequence);
  return HighWater(path, std::move(file), second_is_later ? 0 : 1);
}

absl::Status HighWater::Write(const LogMark& mark) {
  Slot slot = {.sequence = mark.sequence, .hash = mark.hash, .check = 0};
  slot.check = CheckOf(slot);
  const ssize_t written = ::pwrite(file_.get(), &slot, sizeof(slot), next_ * kSlotBytes);
  if (written != sizeof(slot)) return formats::FileError("write", path_);
  if (::fdatasync(file_.get()) != 0) return formats::FileError("sync", path_);
  next_ = 1 - next_;
  return absl::OkStatus();
}

}  // namespace causeway::server
