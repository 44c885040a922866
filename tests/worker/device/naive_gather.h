// GatherKernel without its shift to lines, to compare with: the first lane of a piece takes its first value, so that 32
// lanes read from two lines wherever a piece begins within one.
#pragma once

#include "worker/device/kernels/value_kernels.h"

namespace causeway::worker {

struct NaiveGatherKernel {
  const GatherPiece* pieces;  // of at least one value each, first blocks in order
  float* to;
  int64_t count, all_blocks;  // of pieces

  CAUSEWAY_ANYWHERE static int64_t BlocksOf(const float*, int64_t values) { return worker::BlocksOf(values); }
  CAUSEWAY_ANYWHERE static int64_t FirstOf(const GatherPiece& piece, int64_t block) {
    return (block - piece.first_block) * kValuesPerBlock;
  }

  CAUSEWAY_ANYWHERE int64_t blocks() const { return all_blocks; }
  template <typename Block>
  CAUSEWAY_ANYWHERE void Run(Block& block) const {
    const GatherPiece& mine = GatherKernel::PieceOf(pieces, count, block.index());
    const int64_t first = FirstOf(mine, block.index());
    block.Each([&](int lane) {
      for (int64_t i = first + lane; i < first + kValuesPerBlock && i < mine.count; i += kLanes) {
        to[mine.at + i] = mine.from[i];
      }
    });
  }
};

}  // namespace causeway::worker
