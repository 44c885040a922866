// The block interface, with which a kernel is written once for GPUs and the host.
//
//   Each(f)     f(lane) for every lane of the block, concurrently and in any order; returns when all have finished
//   PerLane<T>  a value of each lane, from one Each to the next: a register on a GPU, an array here
//   scratch()   2 kLanes doubles that the lanes of a block share, from a multiple of 16 bytes on
//   Combined    the lanes' values combined, for all of them: a tree over lanes, value l with value l + half
//
// A kernel is a struct of its arguments with `blocks()` and `Run(block)`: each block computes independently, and no two
// blocks write the same value. Within an Each, no lane reads a value that another lane writes there. So a kernel gives
// the same bits on the host in any order of its lanes, which tests permute: different bits mean a race. Sums over lanes
// use a fixed tree. No toolkit is included here; worker/device/cuda has the GPU's block.
#pragma once

#include <cstdint>

#include "core/anywhere.h"

namespace causeway::worker {

inline constexpr int kLanes = 128;

// One block of the host, which runs its lanes one after the other.
class HostBlock {
 public:
  template <typename T>
  class PerLane {
   public:
    T& operator[](int lane) { return values_[lane]; }

   private:
    T values_[kLanes] = {};
  };

  // `order` of the lanes; null: ascending. It outlives the block.
  explicit HostBlock(int64_t index, const uint8_t* order = nullptr) : index_(index), order_(order) {}

  int64_t index() const { return index_; }
  double* scratch() { return scratch_; }

  template <typename F>
  void Each(const F& f) const {
    if (order_ == nullptr) {
      for (int lane = 0; lane < kLanes; ++lane) f(lane);
    } else {
      for (int i = 0; i < kLanes; ++i) f(order_[i]);
    }
  }

  template <typename T, typename Combine>
  static T Combined(PerLane<T> values, const Combine& combine) {
    for (int half = kLanes / 2; half > 0; half /= 2) {
      for (int lane = 0; lane < half; ++lane) values[lane] = combine(values[lane], values[lane + half]);
    }
    return values[0];
  }

 private:
  const int64_t index_;
  const uint8_t* const order_;
  alignas(16) double scratch_[2 * kLanes];
};

template <typename Block, typename T>
CAUSEWAY_ANYWHERE T SumOverLanes(Block& block, typename Block::template PerLane<T>& values) {
  return block.Combined(values, [](T a, T b) { return a + b; });
}

template <typename Block>
CAUSEWAY_ANYWHERE float MaxOverLanes(Block& block, typename Block::template PerLane<float>& values) {
  return block.Combined(values, [](float a, float b) { return a > b ? a : b; });
}

}  // namespace causeway::worker
