// A batch on the device, with its rows sorted by token, the order in which the embedding's gradient is summed.
//
// One owner thread.
#pragma once

#include <cstdint>
#include <vector>

#include "worker/gpu/arena.h"
#include "worker/gpu/compute_backend.h"
#include "worker/gpu/embedding_shares.h"
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

  // EmbeddingShares on the device, and their numbers.
  const int32_t* order() const { return At(kOrder); }
  const int32_t* share_tokens() const { return At(kShareTokens); }
  const int32_t* share_begins() const { return At(kShareBegins); }
  const int32_t* share_ends() const { return At(kShareEnds); }
  const int32_t* split() const { return At(kSplit); }
  const EmbeddingShares& shares() const { return shares_; }

 private:
  enum Part { kTokens, kTargets, kOrder, kShareTokens, kShareBegins, kShareEnds, kSplit, kParts };

  int32_t* At(Part part) const { return arena_->At<int32_t>(places_[part]); }

  Arena* const arena_;
  offload::Device* const device_;
  const size_t most_rows_;
  Arena::Place places_[kParts];
  std::vector<int32_t> tokens_, targets_;  // these and shares_ stay until they are on the device
  EmbeddingShares shares_;
  offload::Device::Event copied_;
};

}  // namespace causeway::worker
