// A fragment as a site or a coordinator holds it, so that two of them can compare theirs.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>

#include "core/ids.h"

namespace causeway::core {

// A version of a fragment's anchor and momentum.
struct HeldVersion {
  Version version = 0;
  uint64_t anchor_digest = 0;    // of W
  uint64_t momentum_digest = 0;  // of v

  friend auto operator<=>(const HeldVersion&, const HeldVersion&) = default;
};

struct HeldFragment {
  FragmentId fragment = 0;
  HeldVersion held;
  std::optional<HeldVersion> before;  // its last update, if it is known
  int64_t run_tokens = 0;             // of all sites, merged into it until that version
};

}  // namespace causeway::core
