// The layers' buffers of a pipeline's device, taken by the operations that need them and returned.
//
//   F takes a layer's activations ─► … ─► W (or B) gives them back; I takes a layer's gradients ─► W gives them back
//
// It grows to the largest number taken at once, which the schedule determines, and which the last step needed. One
// owner thread.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "worker/model/llama_stage.h"

namespace causeway::worker {

template <typename Buffers>
class BlockPool {
 public:
  explicit BlockPool(const LlamaShape& shape) : shape_(shape) {}

  std::vector<Buffers*> Take(int count) {
    while (std::ssize(free_) < count) {
      all_.push_back(std::make_unique<Buffers>(shape_));
      free_.push_back(all_.back().get());
    }
    std::vector<Buffers*> taken(free_.end() - count, free_.end());
    free_.resize(free_.size() - static_cast<size_t>(count));
    return taken;
  }
  void Give(std::vector<Buffers*>& taken) {
    free_.insert(free_.end(), taken.begin(), taken.end());
    taken.clear();
  }

  int64_t size() const { return std::ssize(all_); }  // the largest number taken at once

 private:
  const LlamaShape shape_;
  std::vector<std::unique_ptr<Buffers>> all_;
  std::vector<Buffers*> free_;
};

}  // namespace causeway::worker
