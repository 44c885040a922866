// The coordinator's state of a fragment: 12 bytes per parameter (invariant 7), in padded layout.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>

#include "core/aligned.h"
#include "core/digest.h"
#include "core/ids.h"

namespace causeway::core {

struct FragmentState {
  Version version = 0;
  AlignedFloats anchor;    // W
  AlignedFloats momentum;  // v
  AlignedFloats residual;  // ē, in the down codec's domain; empty when feedback_down is 0
  int64_t run_tokens = 0;  // tokens of all contributions merged into the fragment

  uint64_t Digest() const { return DigestUnits(anchor, 0); }
};

// A fragment as a site or a coordinator holds it, so that two of them can compare theirs.

// A version of a fragment's anchor and momentum.
struct HeldVersion {
  Version version = 0;
  uint64_t anchor_digest = 0;    // digest of W
  uint64_t momentum_digest = 0;  // digest of v

  friend auto operator<=>(const HeldVersion&, const HeldVersion&) = default;
};

struct HeldFragment {
  FragmentId fragment = 0;
  HeldVersion held;
  std::optional<HeldVersion> before;  // the version before its last update, if it is known
  int64_t run_tokens = 0;             // tokens of all sites' contributions merged until that version
};

}  // namespace causeway::core
