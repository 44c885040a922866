#include "ctl/heap.h"

#include <malloc.h>

#include "core/limits.h"

namespace causeway::ctl {

void SetUpHeap() {
#if defined(__GLIBC__)
  mallopt(M_ARENA_MAX, 1);
  mallopt(M_MMAP_THRESHOLD, 4 * core::kMaxChunkBytes);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);  // payloads in flight, of most runs
  mallopt(M_TOP_PAD, 16 * core::kMaxChunkBytes);
#endif
}

}  // namespace causeway::ctl
