// The coordinator's state of a fragment: 12 bytes per parameter (invariant 7), in padded layout.
#pragma once

#include "core/aligned.h"
#include "core/digest.h"
#include "core/ids.h"

namespace causeway::core {

struct FragmentState {
  Version version = 0;
  AlignedFloats anchor;    // W
  AlignedFloats momentum;  // v
  AlignedFloats residual;  // ē, in the down codec's domain; empty when feedback_down is 0
  int64_t run_tokens = 0;  // of all contributions merged into it

  uint64_t Digest() const { return DigestUnits(anchor, 0); }
};

}  // namespace causeway::core
