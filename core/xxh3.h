// XXH3-64 with the widest vectors of the processor: the library's plain functions are compiled for the oldest
// processor, and a third as fast as those that choose at run time. The hashes are the same.
//
// Not every build of the library has the latter (shared ones for x86-64 do), so they are weak symbols. Thread-safe.
#pragma once

#include <xxhash.h>

#include <cstddef>
#include <cstdint>

extern "C" [[gnu::weak]] XXH64_hash_t XXH3_64bits_withSeed_dispatch(const void* bytes, size_t size, XXH64_hash_t seed);

namespace causeway::core {

// XXH3_64bits(bytes, size) is the one with seed 0.
inline uint64_t Xxh3(const void* bytes, size_t size, uint64_t seed = 0) {
  if (XXH3_64bits_withSeed_dispatch != nullptr) return XXH3_64bits_withSeed_dispatch(bytes, size, seed);
  return XXH3_64bits_withSeed(bytes, size, seed);
}

}  // namespace causeway::core
