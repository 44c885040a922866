// A batch on the device, with its rows sorted by token, the order in which the embedding's gradient is summed.
//
//   Batch ─► PreparedBatch: sorted, by any thread ─► Copy: pinned memory of two batches, in turns ─► the device
//
// One owner thread.
#pragma once

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "offload/pinned_pool.h"
#include "worker/device/arena.h"
#include "worker/device/compute_backend.h"
#include "worker/model/embedding_shares.h"
#include "worker/model/llama_model.h"

namespace causeway::worker {

struct PreparedBatch {
  explicit PreparedBatch(Batch rows, bool sorted = true) : batch(std::move(rows)) {
    if (sorted) shares.Assign(batch.tokens);
  }

  Batch batch;
  EmbeddingShares shares;  // for a device
};

class GpuBatch {
 public:
  // For `rows` tokens; its memory is the arena's.
  GpuBatch(int64_t rows, Arena* arena, ComputeBackend* backend);

  // Queues the copy of a batch on kCompute. Blocks until the one of the last but one is done. RESOURCE_EXHAUSTED:
  // pinned memory.
  absl::Status Copy(const PreparedBatch& prepared);

  const int32_t* tokens() const { return At(kTokens); }
  const int32_t* targets() const { return At(kTargets); }

  // EmbeddingShares on the device, and their numbers.
  const int32_t* order() const { return At(kOrder); }
  const int32_t* share_tokens() const { return At(kShareTokens); }
  const int32_t* share_begins() const { return At(kShareBegins); }
  const int32_t* share_ends() const { return At(kShareEnds); }
  const int32_t* split() const { return At(kSplit); }
  struct Counts {
    int64_t shares = 0, partial = 0, split_tokens = 0;
  };
  const Counts& counts() const { return counts_; }

 private:
  enum Part { kTokens, kTargets, kOrder, kShareTokens, kShareBegins, kShareEnds, kSplit, kParts };

  int32_t* At(Part part) const { return arena_->At<int32_t>(place_) + part * stride_; }

  Arena* const arena_;
  offload::Device* const device_;
  const int64_t most_rows_, stride_;  // in values; of a part
  Arena::Place place_ = 0;
  offload::PinnedPool pool_;
  struct Staged {
    offload::PinnedPool::Array memory;
    offload::Device::Event copied = 0;
  };
  Staged staged_[2];
  int64_t copies_ = 0;
  Counts counts_;
};

}  // namespace causeway::worker
