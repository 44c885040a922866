// The memory that the ranks of a fake NCCL's communicator share (fake_nccl.cc).
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace fake_nccl {

inline constexpr int kMostRanks = 4;
inline constexpr size_t kPieceBytes = size_t{256} << 10;

struct Piece {
  alignas(64) std::byte bytes[kPieceBytes];
};

// A rank's piece on its way to another.
struct Mailbox {
  std::atomic<uint32_t> full;
  Piece piece;
};

// Zeroed memory is its beginning.
struct Shared {
  std::atomic<uint32_t> joined;
  std::atomic<uint64_t> arrived[kMostRanks];  // barriers that a rank has come to
  Piece pieces[kMostRanks];
  Mailbox mailboxes[kMostRanks][kMostRanks];
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

inline Shared* Map(const char* name, bool make) {
  const int file = shm_open(name, make ? O_RDWR | O_CREAT | O_EXCL : O_RDWR, 0600);
  if (file < 0) return nullptr;
  void* memory = MAP_FAILED;
  if (!make || ftruncate(file, sizeof(Shared)) == 0) {
    memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  }
  close(file);
  return memory == MAP_FAILED ? nullptr : static_cast<Shared*>(memory);
}

}  // namespace fake_nccl
