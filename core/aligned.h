// Arrays of float32 that begin on a cache line, so that no vector of 16 values straddles two lines, and non-temporal
// stores are possible. Large arrays come directly from the kernel as pages and not from the heap: a heap that allocates
// and frees arrays of many megabytes becomes fragmented, and inside another program (worker/library/causeway.h) we
// cannot tune it.
#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace causeway::core {

inline constexpr std::size_t kCacheLineBytes = 64;
inline constexpr std::size_t kPagesFromBytes = std::size_t{1} << 20;

void* AllocatePages(std::size_t bytes);  // the pages are zero; throws std::bad_alloc
void FreePages(void* pages, std::size_t bytes);

template <typename T>
struct CacheLineAllocator {
  using value_type = T;

  CacheLineAllocator() = default;
  template <typename U>
  explicit CacheLineAllocator(const CacheLineAllocator<U>&) {}

  T* allocate(std::size_t count) {
    const std::size_t bytes = count * sizeof(T);
    if (bytes >= kPagesFromBytes) return static_cast<T*>(AllocatePages(bytes));
    return static_cast<T*>(::operator new(bytes, std::align_val_t(kCacheLineBytes)));
  }
  void deallocate(T* values, std::size_t count) {
    const std::size_t bytes = count * sizeof(T);
    if (bytes >= kPagesFromBytes) return FreePages(values, bytes);
    ::operator delete(values, std::align_val_t(kCacheLineBytes));
  }
  friend bool operator==(CacheLineAllocator, CacheLineAllocator) { return true; }
};

using AlignedFloats = std::vector<float, CacheLineAllocator<float>>;

}  // namespace causeway::core
