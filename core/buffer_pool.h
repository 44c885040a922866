// Bytes with an owner; and arrays that only a fragment in flight needs: lent for as long as they are held, then reused.
//
//   Take(n) ─► Buffer of n values ─► … ─► end of its life ─► the pool, for the next fragment
//
// A site has few fragments in flight at a time, so it needs few such arrays however many fragments it has. The initial
// contents of a Buffer are undefined. Thread-safe; the pool outlives its Buffers.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/aligned.h"
#include "core/mutex.h"

namespace causeway::core {

// Immutable bytes anywhere in memory: a view, together with the owner of its memory.
//
//   string ──┐
//   memory that a device writes ──┴─► Bytes ─► copies of it ─► the last one is gone: the memory is released
//
// Copies are cheap. Thread-safe.

class Bytes {
 public:
  Bytes() = default;
  Bytes(std::string text) : Bytes(std::make_shared<const std::string>(std::move(text))) {}    // NOLINT: as a string
  Bytes(std::shared_ptr<const std::string> text) : bytes_(*text), owner_(std::move(text)) {}  // NOLINT: as a string
  Bytes(absl::string_view bytes, std::shared_ptr<const void> owner) : bytes_(bytes), owner_(std::move(owner)) {}

  operator absl::string_view() const { return bytes_; }  // NOLINT(google-explicit-constructor)
  const char* data() const { return bytes_.data(); }
  size_t size() const { return bytes_.size(); }
  const char* begin() const { return data(); }
  const char* end() const { return data() + size(); }

  friend bool operator==(const Bytes& a, const Bytes& b) { return a.bytes_ == b.bytes_; }
  friend bool operator==(const Bytes& a, const std::string& b) { return a.bytes_ == b; }

 private:
  absl::string_view bytes_;
  std::shared_ptr<const void> owner_;
};

// A payload: each chunk lies where its encoder wrote it.
using Chunks = std::shared_ptr<const std::vector<Bytes>>;

class BufferPool;

// A lent array; an empty Buffer holds none.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer() { Reset(); }

  void Reset();  // returns the array to its pool
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
  size_t free_values() const;  // values in arrays that are not lent
  void Trim();                 // frees the arrays that are not lent

 private:
  friend class Buffer;
  void GiveBack(AlignedFloats storage);

  mutable Mutex mutex_;
  std::vector<AlignedFloats> free_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace causeway::core
