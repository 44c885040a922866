// Arrays that only a fragment in flight needs: lent for as long as they are held, then reused.
//
//   Take(n) ─► Buffer of n values ─► … ─► end of its life ─► the pool, for the next fragment
//
// A site has few fragments in flight at a time, so it needs few such arrays however many fragments it has. The initial
// contents of a Buffer are undefined. Thread-safe; the pool outlives its Buffers.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/aligned.h"
#include "core/mutex.h"

namespace causeway::core {

class BufferPool;

// A lent array; an empty Buffer holds none.
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
  size_t free_values() const;  // held for reuse
  void Trim();                 // frees the arrays that are not lent

 private:
  friend class Buffer;
  void GiveBack(AlignedFloats storage);

  mutable Mutex mutex_;
  std::vector<AlignedFloats> free_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace causeway::core
