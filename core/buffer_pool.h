// Arrays that only a fragment in flight needs: lent for as long as they are held, then used again.
//
//   Take(n) ─► Buffer of n values ─► … ─► end of its life ─► the pool, for the next fragment
//
// A site has few fragments in flight at a time, so that it needs few such arrays however many its fragments are. What a
// Buffer holds at first is not defined. Thread-safe; the pool outlives its Buffers.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/aligned.h"
#include "core/mutex.h"

namespace causeway::core {

class BufferPool;

// One lent array; an empty one holds nothing.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer() { Reset(); }

  void Reset();  // gives it back
  bool empty() const { return size_ == 0; }
  std::span<float> values() { return {storage_.data(), size_}; }
  std::span<const float> values() const { return {storage_.data(), size_}; }

 private:
  friend class BufferPool;
  Buffer(BufferPool* pool, AlignedFloats storage, size_t size)
      : pool_(pool), storage_(std::move(storage)), size_(size) {}

  BufferPool* pool_ = nullptr;
  AlignedFloats storage_;
  size_t size_ = 0;
};

class BufferPool {
 public:
  Buffer Take(size_t size);
  size_t free_values() const;  // that are held for the next ones
  void Trim();                 // frees what is not lent

 private:
  friend class Buffer;
  void GiveBack(AlignedFloats storage);

  mutable Mutex mutex_;
  std::vector<AlignedFloats> free_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace causeway::core
