#include "codecs/chunk.h"

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "codecs/chunk_layout.h"
#include "codecs/chunk_writer.h"
#include "codecs/encode_input.h"
#include "core/check.h"
#include "core/limits.h"

namespace causeway::codecs {
namespace {

absl::Status BadValue(size_t index, float value, int exponent) {
  return absl::InvalidArgumentError(
      absl::StrCat("value ", index, " is ", value, "; expected a finite one below 2^", exponent, " in magnitude"));
}

// For a rotating codec, where a bad value spoils its block: names the value, or else the block that its residual
// spoils.
absl::Status FindBadBlock(const ChunkSpan& span, std::span<const float> values, const ChunkFeedback& feedback) {
  for (size_t begin = 0; begin < values.size(); begin += core::kBlockValues) {
    const auto block = values.subspan(begin, std::min<size_t>(core::kBlockValues, values.size() - begin));
    std::array<float, core::kBlockValues> d = {};
    std::ranges::copy(block, d.begin());
    Rotate(SignsOf(span.rotation_seed, (span.first_value() + begin) / core::kBlockValues), d);
    if (feedback.beta > 0) AddFeedback(feedback.beta, &feedback.residual[begin], d.data(), std::ssize(d), d.data());
    const std::optional<size_t> coefficient = FirstOutOfRange(d, core::kMaxMagnitude);
    if (!coefficient) continue;
    if (const auto index = FirstOutOfRange(block, kMaxRotatedMagnitude))
      return BadValue(begin + *index, block[*index], 94);
    return absl::InvalidArgumentError(absl::StrCat("values ", begin, " to ", begin + block.size() - 1,
                                                   " with their residual have coefficient ", d[*coefficient],
                                                   "; expected one below 2^100 in magnitude"));
  }
  CHECK(false);
}

// Names the first value that made an encoder refuse the chunk.
absl::Status FindBadValue(const ChunkSpan& span, std::span<const float> values, const ChunkFeedback& feedback) {
  if (GetCodec(span.codec).rotates()) return FindBadBlock(span, values, feedback);
  if (const auto index = FirstOutOfRange(values, core::kMaxMagnitude)) return BadValue(*index, values[*index], 100);
  std::vector<float> d(values.size());
  AddFeedback(feedback.beta, feedback.residual.data(), values.data(), values.size(), d.data());
  const std::optional<size_t> index = FirstOutOfRange(d, core::kMaxMagnitude);
  CHECK(index.has_value());
  return BadValue(*index, d[*index], 100);
}

}  // namespace

int64_t ResidualValues(const ChunkSpan& span) {
  return GetCodec(span.codec).rotates() ? core::BlocksFor(span.values) * core::kBlockValues : span.values;
}

absl::StatusOr<std::string> EncodeChunk(const ChunkSpan& span, std::span<const float> values,
                                        const ChunkFeedback& feedback) {
  CHECK(static_cast<int64_t>(values.size()) == span.values);
  ChunkWriter writer(span, GainFor(feedback.beta));
  if (!writer.Append(values, feedback)) return FindBadValue(span, values, feedback);
  return writer.Finish();
}

absl::StatusOr<ChunkView> ChunkView::Parse(absl::string_view bytes) {
  ASSIGN_OR_RETURN(const ChunkHeader header, ParseChunkHeader(bytes));
  if (header.compressed) return BadChunk("expected one that is not compressed");
  const ChunkSpan& span = header.span;
  const ChunkLayout layout(span.codec, span.values);
  if (static_cast<int64_t>(bytes.size()) != layout.size) {
    return BadChunk("expected ", layout.size, " bytes for ", span.values, " values of ", core::CodecName(span.codec),
                    ", got ", bytes.size());
  }
  RETURN_IF_ERROR(CheckChunkHash(bytes));
  if (!AllZero(bytes, layout.scales_end, layout.codes) || !AllZero(bytes, layout.codes_end, layout.size)) {
    return BadChunk("expected zeros in the padding after scales and codes");
  }
  ChunkView view;
  view.span_ = span;
  view.codec_ = &GetCodec(span.codec);
  view.scales_ = reinterpret_cast<const uint8_t*>(bytes.data()) + layout.scales;
  view.codes_ = reinterpret_cast<const uint8_t*>(bytes.data()) + layout.codes;
  const absl::Status content = view.codec_->Validate(view.scales_, view.codes_, span.values);
  if (!content.ok()) return BadChunk(core::CodecName(span.codec), " ", content.message());
  return view;
}

DecodeJob ChunkView::JobAt(int64_t first_unit, std::span<float> values, bool in_domain) const {
  const int64_t unit = first_unit - span_.first_unit;
  const int64_t within = in_domain && rotates() ? core::BlocksFor(span_.values) * core::kBlockValues : span_.values;
  CHECK(unit >= 0 && unit * core::kUnitValues + static_cast<int64_t>(values.size()) <= within);
  DecodeJob job = {.scales = scales_ + codec_->ScaleOffset(unit),
                   .codes = codes_ + codec_->CodeOffset(unit),
                   .values = values.data(),
                   .count = static_cast<int64_t>(values.size())};
  if (rotates() && !in_domain) job.rotation = {span_.rotation_seed, first_unit * core::kBlocksPerUnit};
  return job;
}

DecodeTerm ChunkView::TermAt(int64_t first_unit, int64_t count, float weight) const {
  const int64_t unit = first_unit - span_.first_unit;
  CHECK(unit >= 0 && count >= 0 && unit * core::kUnitValues + count <= span_.values);
  return {scales_ + codec_->ScaleOffset(unit), codes_ + codec_->CodeOffset(unit), weight};
}

void ChunkView::Decode(int64_t first_unit, std::span<float> values) const {
  codec_->Decode(JobAt(first_unit, values, /*in_domain=*/false));
}

void ChunkView::DecodeAdd(int64_t first_unit, float weight, std::span<float> sum) const {
  DecodeJob job = JobAt(first_unit, sum, /*in_domain=*/false);
  job.add = weight;
  codec_->Decode(job);
}

void ChunkView::DecodeAddInDomain(int64_t first_unit, float weight, std::span<float> sum) const {
  DecodeJob job = JobAt(first_unit, sum, /*in_domain=*/true);
  job.add = weight;
  codec_->Decode(job);
}

}  // namespace causeway::codecs
