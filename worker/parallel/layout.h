// The places of values, on ranks and in arrays. Plain data.
//
//   a stage's array   |tensor 3|tensor 4|padding: equal parts for all ranks|
//   pieces            tensor 3 from value 0 on at 0, tensor 4 at 512, …
#pragma once

#include <cstdint>
#include <vector>

namespace causeway::worker {

// Values [first, first + count) of a tensor, on a rank, from value `at` of an array on.
struct Piece {
  int rank = 0;    // −1: on no rank
  int tensor = 0;  // its index in the manifest; −1: padding
  int64_t first = 0, count = 0;
  int64_t at = 0;

  friend bool operator==(const Piece&, const Piece&) = default;
};

// The tensors that are gathered and released together, in one array.
struct LayoutGroup {
  std::vector<Piece> pieces;
  int64_t values = 0, padded = 0;  // without and with the padding that makes the ranks' parts equal
};

}  // namespace causeway::worker
