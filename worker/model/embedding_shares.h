// The rows of a batch by token, cut into the shares that a device sums for the embedding's gradient
// (worker/device/kernels/embedding_kernels.h).
//
//   tokens 7 3 7 7 … (100 rows of 7, one of 3)  ─►  shares: 64 rows of 7, 36 rows of 7, the row of 3
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace causeway::worker {

// Tokens with more rows than a share come first: their shares are partial sums.
struct EmbeddingShares {
  std::vector<int32_t> order;                 // rows sorted by token, those of one token ascending
  std::vector<int32_t> tokens, begins, ends;  // of each share: order[begins] to order[ends − 1]
  std::vector<int32_t> split;                 // first share of each token with several, and the end of the last

  void Assign(std::span<const int32_t> of_rows);

  int64_t count() const { return std::ssize(tokens); }
  int64_t partial() const { return split.back(); }
  int64_t split_tokens() const { return std::ssize(split) - 1; }
};

}  // namespace causeway::worker
