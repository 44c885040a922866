// The layers of a Llama that have weights, queued on kCompute: linear maps and RMSNorm, forward and backward.
//
// Values have the type T, gradients of weights are float32 and are added to. x is [rows, in], w [out, in]. Their
// reference is worker/model/llama_layers.h. One owner thread.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "core/run_config.h"
#include "offload/host_array.h"
#include "worker/device/arena.h"
#include "worker/device/compute_backend.h"
#include "worker/model/llama_model.h"

namespace causeway::worker {

// A batch on the device, with its rows sorted by token, the order in which the embedding's gradient is summed.
//
//   Batch ─► PreparedBatch: sorted, by any thread ─► Copy: pinned memory of two batches, in turns ─► the device
//
// One owner thread.

// The rows of a batch by token, cut into the shares that a device sums for the embedding's gradient
// (worker/device/kernels/embedding_kernels.h).
//
//   tokens 7 3 7 7 … (100 rows of 7, one of 3)  ─►  shares: 64 rows of 7, 36 rows of 7, the row of 3

// Tokens with more rows than a share come first: their shares are partial sums.
struct EmbeddingShares {
  std::vector<int32_t> order;                 // rows sorted by token, those of one token ascending
  std::vector<int32_t> tokens, begins, ends;  // for each share, rows order[begins] to order[ends − 1]
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
  EmbeddingShares shares;  // empty unless sorted, for a device
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

  // EmbeddingShares on the device, and how many there are.
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
  const int64_t most_rows_, stride_;  // stride: values of a part
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

// A Llama on a device: the values that backward recomputes, and the row sizes that a GPU supports.

// The values that backward recomputes: none; normed values and SwiGLU's output; all except a block's input. The bits
// are the same.
enum class Recompute { kNone, kNormSwiglu, kBlock };
inline constexpr Recompute kAllRecompute[] = {Recompute::kNone, Recompute::kNormSwiglu, Recompute::kBlock};
const char* RecomputeName(Recompute recompute);  // "none", "norm_swiglu", "block"

// INVALID_ARGUMENT: a row size that a GPU's matrix products do not support, with the key, the multiple and the value.
absl::Status CheckGpuShape(const core::LlamaConfig& config, ValueType type);

template <typename T>
class GpuLayers {
 public:
  // The rows of a norm's weight gradient are summed in at most 1,024 shares of at least 8 rows: as many blocks as a
  // large GPU runs at once.
  static constexpr int64_t kNormShares = 1024, kRowsPerShare = 8;

  struct Shape {
    int64_t rows = 0, hidden = 0;  // a norm is over hidden values
    double norm_epsilon = 0;
  };

  GpuLayers(const Shape& shape, ComputeBackend* backend) : shape_(shape), backend_(backend) {}

  // kNormShares · hidden floats on the device.
  void SetBuffer(float* partials) { partials_ = partials; }

  // A map of rows of `in` values to `out`; its output rows are `stride` values apart, which may be more than `out`.
  // `rows`: 0: all of them.
  struct Map {
    Map(int64_t in_size, int64_t out_size) : Map(in_size, out_size, out_size) {}
    Map(int64_t in_size, int64_t out_size, int64_t out_stride, int64_t of_rows = 0)
        : in(in_size), out(out_size), stride(out_stride), rows(of_rows) {}
    int64_t in, out, stride, rows = 0;
  };

  // y = x · wᵀ + addend, where there is one; dx = dy · w; dw += dyᵀ · x.
  void Linear(const Map& map, const T* x, const T* w, T* y, const T* addend = nullptr) const;
  void LinearBackwardInput(const Map& map, const T* dy, const T* w, T* dx) const;
  void LinearBackwardWeight(const Map& map, const T* dy, const T* x, float* dw) const;

  // Keeps 1/√(mean(x²) + ε) of each row in `scale`.
  void Norm(const T* x, const T* w, T* y, float* scale) const;

  // A norm's backward pass reads these.
  struct PassedNorm {
    const T *dy = nullptr, *x = nullptr, *w = nullptr;
    const float* scale = nullptr;
  };
  // dx = addend, or none if null, + the gradient of x; dw, if not null, is added to. dx may be the addend.
  void NormBackward(const PassedNorm& norm, const T* addend, T* dx, float* dw) const;
  // The second half alone, with the same bits; needs no w.
  void NormBackwardWeight(const PassedNorm& norm, float* dw) const;

 private:
  int64_t RowsOf(const Map& map) const { return map.rows == 0 ? shape_.rows : map.rows; }
  int64_t NormShares() const;
  // Does both halves in one kernel; false if rows are not packs of 16 bytes, or are too long for it.
  template <int kPacks>
  bool NormBackwardIn(const PassedNorm& norm, const T* addend, T* dx) const;
  void AddNormPartials(float* dw) const;

  const Shape shape_;
  ComputeBackend* const backend_;
  float* partials_ = nullptr;
};

}  // namespace causeway::worker
