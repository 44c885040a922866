#include "core/buffer_pool.h"

#include <algorithm>
#include <utility>

namespace causeway::core {

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this == &other) return *this;
  Reset();
  pool_ = std::exchange(other.pool_, nullptr);
  storage_ = std::move(other.storage_);
  size_ = std::exchange(other.size_, 0);
  return *this;
}

void Buffer::Reset() {
  if (pool_ != nullptr) pool_->GiveBack(std::move(storage_));
  pool_ = nullptr;
  storage_ = {};
  size_ = 0;
}

// Takes the smallest array that is large enough, but not much larger: a borrower may keep it for long. If there is
// none, another array is freed for the new one, so that fragments of several sizes do not each keep arrays of their
// own.
Buffer BufferPool::Take(size_t size) {
  AlignedFloats storage;
  {
    MutexLock lock(mutex_);
    const auto by_size = [](const AlignedFloats& a, const AlignedFloats& b) { return a.size() < b.size(); };
    auto chosen = free_.end();
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      const bool fits = it->size() >= size && it->size() - size <= size / 8;
      if (fits && (chosen == free_.end() || by_size(*it, *chosen))) chosen = it;
    }
    const bool fits = chosen != free_.end();
    if (!fits) chosen = std::max_element(free_.begin(), free_.end(), by_size);
    if (chosen != free_.end()) {
      if (fits) storage = std::move(*chosen);
      free_.erase(chosen);
    }
  }
  if (storage.size() < size) storage = AlignedFloats(size);
  return Buffer(this, std::move(storage), size);
}

size_t BufferPool::free_values() const {
  MutexLock lock(mutex_);
  size_t values = 0;
  for (const AlignedFloats& storage : free_) values += storage.size();
  return values;
}

void BufferPool::Trim() {
  MutexLock lock(mutex_);
  free_.clear();
}

void BufferPool::GiveBack(AlignedFloats storage) {
  MutexLock lock(mutex_);
  free_.push_back(std::move(storage));
}

}  // namespace causeway::core
