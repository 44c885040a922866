// Host memory that a device's kernels write to directly (pinned and mapped), for chunks on their way to the link.
//
//   Take ─► kernel writes codes ─► header and hash ─► gRPC sends from there ─► the last holder lets go ─► Take …
//
// Whole pages, since pinning is by pages; kept for the next chunk, since pinning is slow. Memory in use when the pool
// ends is unpinned, and freed by its last holder. Thread-safe.
#pragma once

#include <cstddef>
#include <memory>

#include "offload/device.h"

namespace causeway::worker {

class ChunkMemory {
 public:
  explicit ChunkMemory(offload::Device* device);  // `device` outlives it
  ~ChunkMemory();

  // Uninitialized memory of at least that size, which begins at a page. If it cannot be pinned, it is returned
  // unpinned, and the log says why.
  std::shared_ptr<char> Take(size_t bytes);

  bool all_pinned() const;  // false: memory could not be pinned, and kernels cannot write to it
  size_t pinned_bytes() const;

 private:
  class Pool;
  std::shared_ptr<Pool> pool_;  // also owned by memory in use
};

}  // namespace causeway::worker
