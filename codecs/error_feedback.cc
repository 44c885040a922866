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

ErrorFeedback::ErrorFeedback(int64_t padded_values, float beta, core::BufferPool* pool) : beta_(beta), pool_(pool) {
  CHECK(padded_values >= 0 && padded_values % core::kUnitValues == 0 && beta >= 0);
  if (beta == 0) return;
  residual_ = pool->Take(padded_values);
  Reset();
}

absl::StatusOr<std::vector<std::string>> ErrorFeedback::Encode(const std::vector<ChunkSpan>& spans,
                                                               std::span<const float> values) {
  CHECK(!pending_);
  core::Buffer next;
  if (beta_ > 0) next = pool_->Take(residual_.values().size());
  std::vector<std::string> chunks;
  for (const ChunkSpan& span : spans) {
    ChunkFeedback feedback;
    if (beta_ > 0) {
      feedback.beta = beta_;
      const int64_t count = ResidualValues(span);
      feedback.residual = residual().subspan(span.first_value(), count);
      const std::span<float> whole = next.values().subspan(span.first_value(), span.units() * core::kUnitValues);
      feedback.next_residual = whole.first(count);
      std::ranges::fill(whole.subspan(count), 0.0f);
    }
    absl::StatusOr<std::string> chunk = EncodeChunk(span, values.subspan(span.first_value(), span.values), feedback);
    if (!chunk.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("in the chunk at unit ", span.first_unit, ": ", chunk.status().message()));
    }
    chunks.push_back(*std::move(chunk));
  }
  next_residual_ = std::move(next);
  pending_ = true;
  return chunks;
}

void ErrorFeedback::Measure() {
  const std::span<const float> values = residual();
  residual_norm_ = std::sqrt(SumOfSquares(values.data(), values.size()));
}

void ErrorFeedback::Admit() {
  CHECK(pending_);
  residual_ = std::move(next_residual_);
  pending_ = false;
  Measure();
}

void ErrorFeedback::Refuse() {
  CHECK(pending_);
  next_residual_.Reset();
  pending_ = false;
}

void ErrorFeedback::Reset() {
  std::ranges::fill(residual_.values(), 0.0f);
  next_residual_.Reset();
  pending_ = false;
  residual_norm_ = 0;
}

void ErrorFeedback::Restore(std::span<const float> residual) {
  CHECK(residual.size() == residual_.values().size());
  std::ranges::copy(residual, residual_.values().begin());
  next_residual_.Reset();
  pending_ = false;
  Measure();
}

void ErrorFeedback::RestorePending(std::span<const float> next_residual) {
  CHECK(next_residual.size() == residual_.values().size());
  if (beta_ > 0) next_residual_ = pool_->Take(next_residual.size());
  std::ranges::copy(next_residual, next_residual_.values().begin());
  pending_ = true;
}

}  // namespace causeway::codecs
