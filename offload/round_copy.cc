#include "offload/round_copy.h"

#include <algorithm>

#include "core/bfloat16.h"
#include "core/multiversion.h"

namespace causeway::offload {
namespace {

CAUSEWAY_MULTIVERSION
void RoundTile(const float* from, uint16_t* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = core::ToBfloat16(from[i]);
}

}  // namespace

void RoundCopy(const float* from, uint16_t* to, int64_t count) {
  constexpr int64_t kTile = 1024;
  alignas(64) uint16_t rounded[kTile];
  for (int64_t first = 0; first < count; first += kTile) {
    const int64_t size = std::min(kTile, count - first);
    RoundTile(from + first, rounded, size);
    StreamCopy(rounded, to + first, size);
  }
  FinishStreamCopies();
}

}  // namespace causeway::offload
