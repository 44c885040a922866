#include "worker/parallel/sharded_tensors.h"

#include <algorithm>

namespace causeway::worker {

std::span<float> ShardedTensors::tensor(int i) {
  const int64_t size = manifest_[static_cast<size_t>(i)].NumValues();
  std::span<float> whole;
  copied_.clear();
  ForEachRun(i, 0, size, [&](int64_t first, std::span<float> run) {
    if (std::ssize(run) == size) {
      whole = run;
      return;
    }
    copied_.resize(static_cast<size_t>(size));
    std::ranges::copy(run, copied_.begin() + first);
  });
  if (!whole.empty()) return whole;
  copied_.resize(static_cast<size_t>(size));
  return copied_;
}

}  // namespace causeway::worker
