// Arrays of float32 that begin on a cache line, so that no vector of 16 values lies across two, and non-temporal stores
// are possible.
#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace causeway::core {

inline constexpr std::size_t kCacheLineBytes = 64;

template <typename T>
struct CacheLineAllocator {
  using value_type = T;

  CacheLineAllocator() = default;
  template <typename U>
  explicit CacheLineAllocator(const CacheLineAllocator<U>&) {}

  T* allocate(std::size_t count) {
    return static_cast<T*>(::operator new(count * sizeof(T), std::align_val_t(kCacheLineBytes)));
  }
  void deallocate(T* values, std::size_t) { ::operator delete(values, std::align_val_t(kCacheLineBytes)); }
  friend bool operator==(CacheLineAllocator, CacheLineAllocator) { return true; }
};

using AlignedFloats = std::vector<float, CacheLineAllocator<float>>;

}  // namespace causeway::core
