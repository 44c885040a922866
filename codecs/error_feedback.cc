#include "codecs/error_feedback.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/multiversion.h"

namespace causeway::codecs {
namespace {

// In lanes, since one sum after the other would take longer than the memory. Whole units, so no lane is left over.
CAUSEWAY_MULTIVERSION
double SumOfSquares(const float* values, size_t count) {
  constexpr size_t kLanes = 16;
  double lanes[kLanes] = {};
  for (size_t i = 0; i < count; i += kLanes) {
    for (size_t l = 0; l < kLanes; ++l) lanes[l] += static_cast<double>(values[i + l]) * values[i + l];
  }
  double sum = 0;
  for (double lane : lanes) sum += lane;
  return sum;
}

}  // namespace

ErrorFeedback::ErrorFeedback(int64_t padded_values, float beta) : beta_(beta) {
  CHECK(padded_values >= 0 && padded_values % core::kUnitValues == 0 && beta >= 0);
  if (beta == 0) return;
  residual_.assign(padded_values, 0.0f);
  next_residual_.assign(padded_values, 0.0f);
}

absl::StatusOr<std::vector<std::string>> ErrorFeedback::Encode(const std::vector<ChunkSpan>& spans,
                                                               std::span<const float> values) {
  CHECK(!pending_);
  std::vector<std::string> chunks;
  for (const ChunkSpan& span : spans) {
    ChunkFeedback feedback;
    if (beta_ > 0) {
      feedback.beta = beta_;
      const int64_t count = ResidualValues(span);
      feedback.residual = std::span<const float>(residual_).subspan(span.first_value(), count);
      feedback.next_residual = std::span<float>(next_residual_).subspan(span.first_value(), count);
    }
    absl::StatusOr<std::string> chunk = EncodeChunk(span, values.subspan(span.first_value(), span.values), feedback);
    if (!chunk.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("in the chunk at unit ", span.first_unit, ": ", chunk.status().message()));
    }
    chunks.push_back(*std::move(chunk));
  }
  pending_ = true;
  return chunks;
}

void ErrorFeedback::Admit() {
  CHECK(pending_);
  residual_.swap(next_residual_);
  pending_ = false;
  residual_norm_ = std::sqrt(SumOfSquares(residual_.data(), residual_.size()));
}

void ErrorFeedback::Refuse() {
  CHECK(pending_);
  pending_ = false;
}

void ErrorFeedback::Reset() {
  std::fill(residual_.begin(), residual_.end(), 0.0f);
  pending_ = false;
  residual_norm_ = 0;
}

void ErrorFeedback::Restore(std::span<const float> residual) {
  CHECK(residual.size() == residual_.size());
  std::copy(residual.begin(), residual.end(), residual_.begin());
  pending_ = false;
  residual_norm_ = std::sqrt(SumOfSquares(residual_.data(), residual_.size()));
}

void ErrorFeedback::RestorePending(std::span<const float> next_residual) {
  CHECK(next_residual.size() == next_residual_.size());
  std::copy(next_residual.begin(), next_residual.end(), next_residual_.begin());
  pending_ = true;
}

}  // namespace causeway::codecs
