// Which arithmetic a round was merged with. A journal says so of each decided round, and a replay by another one is
// refused, because the bits would differ from those that the sites hold.
#pragma once

namespace causeway::core {

// Rises with any change that can give other bits for the same contributions: the order or rounding of the merge, of the
// outer step or of a codec's decoding.
inline constexpr int kNumericsVersion = 1;

}  // namespace causeway::core
