// A batch on the device, with its rows sorted by token, the order in which the embedding's gradient is summed.
//
//   Batch ─► PreparedBatch: sorted, by any thread ─► Copy: pinned memory of two batches, in turns ─► the device
//
// One owner thread.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "offload/pinned_pool.h"
#include "worker/device/arena.h"
#include "worker/device/compute_backend.h"
#include "worker/model/llama_model.h"

namespace causeway::worker {

// The rows of a batch by token, cut into the shares that a device sums for the embedding's gradient
// (worker/device/kernels/embedding_kernels.h).
//
//   tokens 7 3 7 7 … (100 rows of 7, one of 3)  ─►  shares: 64 rows of 7, 36 rows of 7, the row of 3

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
