// A batch on the device, with its rows sorted by token, the order in which the embedding's gradient is summed.
//
// One owner thread.
#pragma once

#include <cstdint>
#include <vector>

#include "worker/gpu/arena.h"
#include "worker/gpu/compute_backend.h"
#include "worker/train/llama_model.h"

namespace causeway::worker {

class GpuBatch {
 public:
  // For `rows` tokens; its memory is the arena's.
  GpuBatch(int64_t rows, Arena* arena, ComputeBackend* backend);

  // Queues the copies of a batch on kCompute. Blocks until those of the one before are done.
  void Copy(const Batch& batch);

  const int32_t* tokens() const { return At(kTokens); }
  const int32_t* targets() const { return At(kTargets); }
  // Rows sorted by token; token occurring()[j] has those from begins()[j] to begins()[j + 1] − 1.
  const int32_t* order() const { return At(kOrder); }
  const int32_t* begins() const { return At(kBegins); }
  const int32_t* occurring() const { return At(kOccurring); }
  int64_t num_occurring() const { return std::ssize(staged_[kOccurring]); }

 private:
  enum Part { kTokens, kTargets, kOrder, kBegins, kOccurring, kParts };

  int32_t* At(Part part) const { return arena_->At<int32_t>(places_[part]); }

  Arena* const arena_;
  offload::Device* const device_;
  Arena::Place places_[kParts];
  std::vector<int32_t> staged_[kParts];  // until they are on the device
  offload::Device::Event copied_;
};

}  // namespace causeway::worker
