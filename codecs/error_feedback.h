// Error feedback of one fragment on one leg: the part that a codec dropped is added to the next input
// (docs/architecture.md).
//
//   d = Δ + β e;   q = Q(d);   send q;   admitted: e ← d − Q⁻¹(q);   refused: e keeps its old value
//
// The only state of encoding, kept in the codec's domain, so rotated where the codec rotates. After Encode the new
// residual is pending until Admit or Refuse, because a refused contribution stays whole in the site. A fragment needs a
// second array only while it is pending, which it takes from a pool. Owned by one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "codecs/chunk.h"
#include "core/buffer_pool.h"

namespace causeway::codecs {

class ErrorFeedback {
 public:
  // `padded_values` of the fragment; beta = 0 keeps no residual at all. The pool outlives it.
  ErrorFeedback(int64_t padded_values, float beta, core::BufferPool* pool);

  // Returns the fragment's values from `first` on, as many as `tile` has room for: made in `tile`, or where they lie.
  using Source = absl::FunctionRef<std::span<const float>(int64_t first, std::span<float> tile)>;

  // Encodes the fragment's values (padded layout) into one chunk for each span, tile by tile, so that a source may make
  // them in cache. Needs no pending residual. INVALID_ARGUMENT as EncodeChunk; nothing is pending then. The spans'
  // codecs may change, but not their domain: all rotate, with the same seed, or none does.
  absl::StatusOr<std::vector<core::Bytes>> Encode(const std::vector<ChunkSpan>& spans, Source values);
  absl::StatusOr<std::vector<core::Bytes>> Encode(const std::vector<ChunkSpan>& spans, std::span<const float> values);

  // The same with another encoder, which gets each chunk's job without its values. Chunks are written to memory of
  // `allocate`, and keep it. Returns the encoder's status, if that is not OK.
  using Allocate = absl::FunctionRef<std::shared_ptr<char>(size_t bytes)>;
  using Encoder = absl::FunctionRef<absl::Status(const ChunkSpan& span, const EncodeJob& job)>;
  absl::StatusOr<std::vector<core::Bytes>> EncodeBy(const std::vector<ChunkSpan>& spans, Allocate allocate,
                                                    Encoder encode);

  void Admit();   // the pending residual becomes the residual
  void Refuse();  // the pending residual is forgotten
  void Reset();   // full resync: residual zero, nothing pending

  // Changes β, when nothing is pending: a residual that did not exist begins with zeros; at β = 0 it is dropped.
  void SetBeta(float beta);

  bool pending() const { return pending_; }
  // The current residual, in the codecs' domain; empty when beta = 0.
  std::span<const float> residual() const { return residual_.values(); }
  std::span<const float> next_residual() const { return next_residual_.values(); }  // empty unless it is pending
  void Restore(std::span<const float> residual);  // `residual` has the same size and domain
  void RestorePending(std::span<const float> next_residual);
  double ResidualNorm() const { return residual_norm_; }       // Euclidean
  uint64_t residual_stamp() const { return residual_stamp_; }  // stamp of residual() (core/stamp.h)
  uint64_t next_stamp() const { return next_stamp_; }          // stamp of a residual that Encode made

 private:
  using OneChunk = absl::FunctionRef<absl::StatusOr<core::Bytes>(const ChunkSpan& span, std::span<float> next)>;
  absl::StatusOr<std::vector<core::Bytes>> EncodeEach(const std::vector<ChunkSpan>& spans, OneChunk encode);
  absl::StatusOr<core::Bytes> EncodeOne(const ChunkSpan& span, Source values, std::span<float> next);
  // The feedback for `count` values from value `first` of the fragment on; the rest of their units becomes zero.
  ChunkFeedback FeedbackAt(core::CodecId codec, int64_t first, int64_t count, std::span<float> next) const;

  const int64_t padded_values_;
  float beta_;
  bool pending_ = false;
  double residual_norm_ = 0;
  double next_squares_ = 0;  // sum of squares of the pending residual
  uint64_t residual_stamp_ = 0, next_stamp_ = 0;
  core::BufferPool* pool_;
  core::Buffer residual_;
  core::Buffer next_residual_;
};

}  // namespace causeway::codecs
