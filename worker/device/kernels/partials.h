// The second half of a sum over rows that many blocks make: shares of the rows have been summed to partials.
#pragma once

#include <cstdint>

#include "worker/device/kernels/values.h"

namespace causeway::worker {

// The columns of one block, and the parts of the shares that its lanes sum, a pack of columns each.
inline constexpr int kPartialColumns = 16, kPartialParts = kLanes * kPack<float> / kPartialColumns;
CAUSEWAY_ANYWHERE int64_t PartialBlocks(int64_t size) { return (size + kPartialColumns - 1) / kPartialColumns; }

// to += Σ over shares of partials[share], for the columns of block `column_block`: first each part, then the parts in
// their order.
template <typename Block>
CAUSEWAY_ANYWHERE void AddShares(Block& block, const float* partials, int64_t shares, int64_t size,
                                 int64_t column_block, float* to) {
  const int64_t first = column_block * kPartialColumns;
  auto* const sums = reinterpret_cast<float*>(block.scratch());
  const bool packed = Packs<float>(size);
  block.Each([&](int lane) {
    constexpr int kWidth = kPack<float>;
    const int part = lane / (kPartialColumns / kWidth), column = lane % (kPartialColumns / kWidth) * kWidth;
    const int64_t end = size - first;  // the columns from `first` on
    Floats<kWidth> sum = {};
    for (int64_t share = part; share < shares; share += kPartialParts) {
      const float* const from = partials + share * size + first + column;
      if (packed && column < end) {
        const auto values = Loaded<kWidth>(from);
        for (int j = 0; j < kWidth; ++j) sum.values[j] += values.values[j];
      }
      for (int j = 0; j < kWidth && !packed && column + j < end; ++j) sum.values[j] += from[j];
    }
    StoreAll(sum, sums + part * kPartialColumns + column);
  });
  block.Each([&](int lane) {
    if (lane >= kPartialColumns || first + lane >= size) return;
    float sum = to[first + lane];
    for (int part = 0; part < kPartialParts; ++part) sum += sums[part * kPartialColumns + lane];
    to[first + lane] = sum;
  });
}

// dw += Σ over shares of partials[share].
struct AddPartialsKernel {
  const float* partials;  // [shares, size]
  float* dw;
  int64_t size, shares;

  CAUSEWAY_ANYWHERE int64_t blocks() const { return PartialBlocks(size); }
  template <typename Block>
  CAUSEWAY_ANYWHERE void Run(Block& block) const {
    AddShares(block, partials, shares, size, block.index(), dw);
  }
};

}  // namespace causeway::worker
