#include "codecs/error_feedback.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "codecs/chunk_writer.h"
#include "core/check.h"
#include "core/multiversion.h"
#include "core/stamp.h"

namespace causeway::codecs {
namespace {

constexpr int64_t kTileValues = 4 * core::kUnitValues;  // 64 KiB: stay in cache with residual and codes

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

ErrorFeedback::ErrorFeedback(int64_t padded_values, float beta, core::BufferPool* pool)
    : padded_values_(padded_values), beta_(beta), pool_(pool) {
  CHECK(padded_values >= 0 && padded_values % core::kUnitValues == 0 && beta >= 0);
  if (beta == 0) return;
  residual_ = pool->Take(padded_values);
  Reset();
}

void ErrorFeedback::SetBeta(float beta) {
  CHECK(beta >= 0 && !pending_);
  if ((beta == 0) != (beta_ == 0)) {
    residual_ = beta == 0 ? core::Buffer() : pool_->Take(padded_values_);
    Reset();
  }
  beta_ = beta;
}

ChunkFeedback ErrorFeedback::FeedbackAt(core::CodecId codec, int64_t first, int64_t count,
                                        std::span<float> next) const {
  if (beta_ == 0) return {};
  const int64_t kept = ResidualValues({codec, 0, count});
  const std::span<float> units = next.subspan(first, core::UnitsFor(count) * core::kUnitValues);
  std::ranges::fill(units.subspan(kept), 0.0f);
  return {beta_, residual().subspan(first, kept), units.first(kept)};
}

// Piece by piece: the values are in cache when they are encoded, and the residual when it is measured.
absl::StatusOr<core::Bytes> ErrorFeedback::EncodeOne(const ChunkSpan& span, Source values, std::span<float> next) {
  const bool whole = span.codec == core::CodecId::kOnebitAdamSign;  // one scale for all of them
  const int64_t tile_values = whole ? span.values : std::min(kTileValues, span.values);
  core::AlignedFloats tile(tile_values);
  ChunkWriter writer(span, GainFor(beta_));
  for (int64_t at = 0; at < span.values; at += tile_values) {
    const int64_t count = std::min(tile_values, span.values - at), first = span.first_value() + at;
    if (!writer.Append(values(first, std::span(tile).first(count)), FeedbackAt(span.codec, first, count, next))) {
      std::vector<float> all(span.values);  // names the value
      return EncodeChunk(span, values(span.first_value(), all),
                         FeedbackAt(span.codec, span.first_value(), span.values, next))
          .status();
    }
    if (beta_ > 0) next_squares_ += SumOfSquares(next.data() + first, core::UnitsFor(count) * core::kUnitValues);
  }
  return writer.Finish();
}

absl::StatusOr<std::vector<core::Bytes>> ErrorFeedback::EncodeEach(const std::vector<ChunkSpan>& spans,
                                                                   OneChunk encode) {
  CHECK(!pending_);
  core::Buffer next;
  if (beta_ > 0) next = pool_->Take(residual_.values().size());
  next_squares_ = 0;
  next_stamp_ = core::NewStamp();
  std::vector<core::Bytes> chunks;
  for (const ChunkSpan& span : spans) {
    absl::StatusOr<core::Bytes> chunk = encode(span, next.values());
    if (!chunk.ok()) {
      return absl::Status(chunk.status().code(),
                          absl::StrCat("in the chunk at unit ", span.first_unit, ": ", chunk.status().message()));
    }
    chunks.push_back(*std::move(chunk));
  }
  next_residual_ = std::move(next);
  pending_ = true;
  return chunks;
}

absl::StatusOr<std::vector<core::Bytes>> ErrorFeedback::Encode(const std::vector<ChunkSpan>& spans, Source values) {
  return EncodeEach(spans, [&](const ChunkSpan& span, std::span<float> next) { return EncodeOne(span, values, next); });
}

absl::StatusOr<std::vector<core::Bytes>> ErrorFeedback::EncodeBy(const std::vector<ChunkSpan>& spans, Allocate allocate,
                                                                 Encoder encode) {
  return EncodeEach(spans, [&](const ChunkSpan& span, std::span<float> next) -> absl::StatusOr<core::Bytes> {
    const auto size = static_cast<size_t>(ChunkBytes(span.codec, span.values));
    const std::shared_ptr<char> memory = allocate(size);
    ChunkWriter writer(span, GainFor(beta_), std::span(memory.get(), size));
    RETURN_IF_ERROR(writer.EncodeBy([&](const EncodeJob& job) { return encode(span, job); },
                                    FeedbackAt(span.codec, span.first_value(), span.values, next)));
    for (int64_t at = 0; beta_ > 0 && at < span.values; at += kTileValues) {  // in EncodeOne's order
      const int64_t units = core::UnitsFor(std::min(kTileValues, span.values - at));
      next_squares_ += SumOfSquares(next.data() + span.first_value() + at, units * core::kUnitValues);
    }
    writer.Seal();
    return core::Bytes(absl::string_view(memory.get(), size), memory);
  });
}

absl::StatusOr<std::vector<core::Bytes>> ErrorFeedback::Encode(const std::vector<ChunkSpan>& spans,
                                                               std::span<const float> values) {
  return Encode(spans, [values](int64_t first, std::span<float> tile) { return values.subspan(first, tile.size()); });
}

void ErrorFeedback::Admit() {
  CHECK(pending_);
  residual_ = std::move(next_residual_);
  residual_stamp_ = next_stamp_;
  pending_ = false;
  residual_norm_ = std::sqrt(next_squares_);
}

void ErrorFeedback::Refuse() {
  CHECK(pending_);
  next_residual_.Reset();
  pending_ = false;
}

void ErrorFeedback::Reset() {
  std::ranges::fill(residual_.values(), 0.0f);
  residual_stamp_ = core::NewStamp();
  next_residual_.Reset();
  pending_ = false;
  residual_norm_ = 0;
}

void ErrorFeedback::Restore(std::span<const float> residual) {
  CHECK(residual.size() == residual_.values().size());
  std::ranges::copy(residual, residual_.values().begin());
  residual_stamp_ = core::NewStamp();
  next_residual_.Reset();
  pending_ = false;
  residual_norm_ = std::sqrt(SumOfSquares(residual.data(), residual.size()));
}

void ErrorFeedback::RestorePending(std::span<const float> next_residual) {
  CHECK(next_residual.size() == residual_.values().size());
  if (beta_ > 0) next_residual_ = pool_->Take(next_residual.size());
  std::ranges::copy(next_residual, next_residual_.values().begin());
  next_squares_ = SumOfSquares(next_residual.data(), next_residual.size());
  next_stamp_ = core::NewStamp();
  pending_ = true;
}

}  // namespace causeway::codecs
