// The embedding of tokens on a device (block.h), and its gradient.
//
// A token may have one row of a batch or thousands (natural text follows Zipf's law), and one block takes at most 64 of
// them, so that no block works much longer than the others.
//
//   dy, rows sorted by token ─► shares of at most 64 rows ─┬─ of a token with one share ──────────────────► dw[token]
//                                                          └─ of others ─► partials ─► EmbeddingPartialsKernel ─► dw
#pragma once

#include <cstdint>

#include "worker/device/kernels/partials.h"
#include "worker/device/kernels/values.h"

namespace causeway::worker {

inline constexpr int64_t kEmbeddingShareRows = 64;

// The most shares of tokens with more than one, over `rows` rows: two of 65 rows are the most for their rows.
CAUSEWAY_ANYWHERE int64_t MostEmbeddingPartials(int64_t rows) { return 2 * rows / (kEmbeddingShareRows + 1); }

// y[row] = w[tokens[row]].
template <typename T>
struct EmbeddingKernel {
  const int32_t* tokens;
  const T* w;
  T* y;
  int64_t rows, size;

  CAUSEWAY_ANYWHERE int64_t blocks() const { return rows; }
  template <typename Block>
  CAUSEWAY_ANYWHERE void Run(Block& block) const {
    const T* const from = w + tokens[block.index()] * size;
    T* const to = y + block.index() * size;
    EachPack<T>(block, size, Packs<T>(size),
                [&](int, int32_t i, auto width) { StoreAll(Loaded<width>(from + i), to + i); });
  }
};

// Share j is the sum of the rows order[begins[j]] to order[ends[j] − 1] of dy, in their order. The first `partial`
// shares are written to partials[j], the others are added to dw[tokens[j]] (worker/model/gpu_layers.h).
template <typename T>
struct EmbeddingBackwardKernel {
  const int32_t *order, *tokens, *begins, *ends;
  const T* dy;
  float *dw, *partials;
  int64_t shares, partial, size;

  CAUSEWAY_ANYWHERE int64_t blocks() const { return shares; }
  template <typename Block>
  CAUSEWAY_ANYWHERE void Run(Block& block) const {
    const int64_t j = block.index();
    const bool whole = j >= partial;
    float* const to = whole ? dw + tokens[j] * size : partials + j * size;
    EachPack<T>(block, size, Packs<T>(size), [&](int, int32_t i, auto width) {
      auto sums = whole ? Loaded<width>(to + i) : Floats<width>{};
      for (int32_t at = begins[j]; at < ends[j]; ++at) {
        const auto row = Loaded<width>(dy + order[at] * size + i);
        for (int k = 0; k < width; ++k) sums.values[k] += row.values[k];
      }
      StoreAll(sums, to + i);
    });
  }
};

// dw[tokens[j]] += Σ partials[j] over the shares of a token; token t of those with partials has shares split[t] to
// split[t + 1] − 1.
struct EmbeddingPartialsKernel {
  const int32_t *tokens, *split;
  const float* partials;
  float* dw;
  int64_t split_tokens, size;

  CAUSEWAY_ANYWHERE int64_t blocks() const { return split_tokens * PartialBlocks(size); }
  template <typename Block>
  CAUSEWAY_ANYWHERE void Run(Block& block) const {
    const int64_t t = block.index() / PartialBlocks(size), first = split[t];
    AddShares(block, partials + first * size, split[t + 1] - first, size, block.index() % PartialBlocks(size),
              dw + tokens[first] * size);
  }
};

}  // namespace causeway::worker
