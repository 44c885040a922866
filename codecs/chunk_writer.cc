#include "codecs/chunk_writer.h"

#include <algorithm>

#include "codecs/chunk_layout.h"
#include "core/check.h"
#include "core/limits.h"

namespace causeway::codecs {
namespace {

uint8_t* Bytes(std::span<char> bytes) { return reinterpret_cast<uint8_t*>(bytes.data()); }

}  // namespace

float GainFor(float beta) { return beta > 0 ? 1.25f : 1.0f; }

ChunkWriter::ChunkWriter(const ChunkSpan& span, float gain) : ChunkWriter(span, gain, {}) {
  own_.resize(ChunkBytes(span.codec, span.values), '\0');
  bytes_ = own_;
}

ChunkWriter::ChunkWriter(const ChunkSpan& span, float gain, std::span<char> bytes)
    : span_(span), codec_(GetCodec(span.codec)), gain_(gain), bytes_(bytes) {
  CHECK(span.first_unit >= 0 && span.values >= 1);
  CHECK(span.rotation_seed == 0 || codec_.rotates());
  const ChunkLayout layout(span.codec, span.values);
  CHECK(layout.size <= core::kMaxChunkBytes);
  if (bytes_.empty()) return;
  CHECK(std::ssize(bytes_) == layout.size);
  const auto clear = [&](int64_t begin, int64_t end) { std::fill(bytes_.begin() + begin, bytes_.begin() + end, '\0'); };
  clear(0, layout.scales);
  clear(layout.scales_end, layout.codes);
  clear(layout.codes_end, layout.size);
}

EncodeJob ChunkWriter::JobAt(int64_t first, int64_t count, const ChunkFeedback& feedback) {
  CHECK(first % core::kUnitValues == 0 && first + count <= span_.values);
  CHECK(count % core::kUnitValues == 0 || first + count == span_.values);
  const ChunkSpan piece = {span_.codec, 0, count};
  const size_t residual_values = feedback.beta > 0 ? ResidualValues(piece) : 0;
  CHECK(feedback.residual.size() == residual_values && feedback.next_residual.size() == residual_values);
  const ChunkLayout layout(span_.codec, span_.values);
  const int64_t unit = first / core::kUnitValues;
  EncodeJob job = {.count = count,
                   .beta = feedback.beta,
                   .gain = gain_,
                   .scales = Bytes(bytes_) + layout.scales + codec_.ScaleOffset(unit),
                   .codes = Bytes(bytes_) + layout.codes + codec_.CodeOffset(unit)};
  if (feedback.beta > 0) {
    job.residual = feedback.residual.data();
    job.next_residual = feedback.next_residual.data();
  }
  return job;
}

bool ChunkWriter::Append(std::span<const float> values, const ChunkFeedback& feedback) {
  const int64_t first = written_.load(std::memory_order_relaxed);
  EncodeJob job = JobAt(first, std::ssize(values), feedback);
  CHECK(span_.codec != core::CodecId::kOnebitAdamSign || job.count == span_.values);  // one scale for all of them
  job.values = values.data();
  if (codec_.rotates()) job.rotation = RotationAt(first);
  written_.store(first + job.count, std::memory_order_relaxed);
  return codec_.Encode(job);
}

absl::Status ChunkWriter::EncodeBy(Encoder encode, const ChunkFeedback& feedback) {
  EncodeJob job = JobAt(0, span_.values, feedback);
  if (codec_.rotates()) job.rotation = RotationAt(0);
  written_ = span_.values;
  return encode(job);
}

void ChunkWriter::WriteMean(int64_t unit, std::span<const float> mean, bool in_domain, const ChunkFeedback& feedback,
                            std::span<float> decoded) {
  const int64_t first = unit * core::kUnitValues;
  EncodeJob job = JobAt(first, std::ssize(decoded), feedback);
  CHECK(span_.codec != core::CodecId::kOnebitAdamSign);  // its scale is the whole chunk's
  CHECK(static_cast<int64_t>(mean.size()) == (in_domain ? ResidualValues({span_.codec, 0, job.count}) : job.count));
  job.values = mean.data();
  job.saturate = true;
  if (codec_.rotates() && !in_domain) job.rotation = RotationAt(first);
  CHECK(codec_.Encode(job));
  DecodeJob back = {.scales = job.scales, .codes = job.codes, .values = decoded.data(), .count = job.count};
  if (codec_.rotates()) back.rotation = RotationAt(first);
  codec_.Decode(back);
  written_.fetch_add(job.count, std::memory_order_relaxed);
}

void ChunkWriter::Seal() {
  CHECK(written_ == span_.values);
  char* header = bytes_.data();
  StoreField(header, kMagicOffset, kChunkMagic);
  StoreField(header, kCodecOffset, static_cast<uint8_t>(span_.codec));
  StoreField(header, kFirstUnitOffset, static_cast<uint64_t>(span_.first_unit));
  StoreField(header, kValuesOffset, static_cast<uint64_t>(span_.values));
  StoreField(header, kRotationSeedOffset, span_.rotation_seed);
  SealChunk(header, std::ssize(bytes_));
}

std::string ChunkWriter::Finish() {
  CHECK(std::ssize(own_) == std::ssize(bytes_));
  Seal();
  return std::move(own_);
}

}  // namespace causeway::codecs
