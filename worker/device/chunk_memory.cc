#include "worker/device/chunk_memory.h"

#include <spdlog/spdlog.h>

#include <cstdlib>
#include <map>
#include <string>
#include <utility>

#include "core/check.h"
#include "core/mutex.h"

namespace causeway::worker {
namespace {

constexpr size_t kPageBytes = 4096;

}  // namespace

class ChunkMemory::Pool {
 public:
  explicit Pool(offload::Device* device) : device_(device) {}

  // Also accepts larger memory, up to twice the size.
  char* Take(size_t bytes) {
    const core::MutexLock lock(mutex_);
    const auto found = free_.lower_bound(bytes);
    if (found != free_.end() && found->first <= 2 * bytes) {
      char* const memory = found->second;
      free_.erase(found);
      return memory;
    }
    char* const memory = static_cast<char*>(std::aligned_alloc(kPageBytes, bytes));
    CHECK(memory != nullptr);
    if (const absl::Status pinned = device_->Pin(memory, bytes); pinned.ok()) {
      pinned_[memory] = bytes;
    } else if (std::exchange(all_pinned_, false)) {
      spdlog::warn("contributions are copied from the device: {}", std::string(pinned.message()));
    }
    return memory;
  }

  void GiveBack(char* memory) {
    const core::MutexLock lock(mutex_);
    const auto found = pinned_.find(memory);
    if (found == pinned_.end()) return std::free(memory);  // the device is gone, or could not pin it
    free_.emplace(found->second, memory);
  }

  // No kernel writes any more.
  void End() {
    const core::MutexLock lock(mutex_);
    for (const auto& [memory, bytes] : pinned_) device_->Unpin(memory);
    for (const auto& [bytes, memory] : free_) std::free(memory);
    pinned_.clear();
    free_.clear();
  }

  bool all_pinned() const {
    const core::MutexLock lock(mutex_);
    return all_pinned_;
  }
  size_t pinned_bytes() const {
    const core::MutexLock lock(mutex_);
    size_t all = 0;
    for (const auto& [memory, bytes] : pinned_) all += bytes;
    return all;
  }

 private:
  offload::Device* const device_;
  mutable core::Mutex mutex_;
  bool all_pinned_ ABSL_GUARDED_BY(mutex_) = true;
  std::map<char*, size_t> pinned_ ABSL_GUARDED_BY(mutex_);
  std::multimap<size_t, char*> free_ ABSL_GUARDED_BY(mutex_);  // of pinned_
};

ChunkMemory::ChunkMemory(offload::Device* device) : pool_(std::make_shared<Pool>(device)) {}

ChunkMemory::~ChunkMemory() { pool_->End(); }

std::shared_ptr<char> ChunkMemory::Take(size_t bytes) {
  const size_t whole = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  return {pool_->Take(whole), [pool = pool_](char* memory) { pool->GiveBack(memory); }};
}

bool ChunkMemory::all_pinned() const { return pool_->all_pinned(); }

size_t ChunkMemory::pinned_bytes() const { return pool_->pinned_bytes(); }

}  // namespace causeway::worker
