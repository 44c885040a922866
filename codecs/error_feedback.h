// Error feedback of one fragment on one leg: what a codec dropped is added to the next input (PROTOCOL.md section 3).
//
//   d = Δ + β e;   q = Q(d);   send q;   admitted: e ← d − Q⁻¹(q);   refused: e keeps its old value
//
// The only place where a codec's past is kept. After Encode the new residual is pending until Admit or Refuse, because
// a refused contribution stays whole in the site. Owned by one thread at a time.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "codecs/chunk.h"

namespace causeway::codecs {

class ErrorFeedback {
 public:
  // `padded_values` of the fragment; beta = 0 keeps no residual at all.
  ErrorFeedback(int64_t padded_values, float beta);

  // Encodes the fragment's values (padded layout) into one chunk for each span. Needs no pending residual.
  // INVALID_ARGUMENT as EncodeChunk; nothing is pending then.
  absl::StatusOr<std::vector<std::string>> Encode(const std::vector<ChunkSpan>& spans, std::span<const float> values);

  void Admit();   // the pending residual becomes the residual
  void Refuse();  // the pending residual is forgotten
  void Reset();   // full resync: residual zero, nothing pending

  bool pending() const { return pending_; }
  std::span<const float> residual() const { return residual_; }  // empty when beta = 0
  void Restore(std::span<const float> residual);                 // same size as residual()
  double ResidualNorm() const;                                   // Euclidean

 private:
  float beta_;
  bool pending_ = false;
  std::vector<float> residual_;
  std::vector<float> next_residual_;
};

}  // namespace causeway::codecs
