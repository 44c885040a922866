// The version of the arithmetic of merges. A journal stores it with each decided round, and a replay with another
// version is refused, because the bits would differ from those that the sites hold.
#pragma once

namespace causeway::core {

// Raised with every change that can give other bits for the same contributions: the order or rounding of the merge, of
// the outer step or of a codec's decoding.
inline constexpr int kNumericsVersion = 1;

}  // namespace causeway::core
