#include "codecs/chunk_writer.h"

#include <xxhash.h>

#include <cmath>

#include "codecs/chunk_layout.h"
#include "core/check.h"
#include "core/limits.h"
#include "core/multiversion.h"

namespace causeway::codecs {
namespace {

// Compares all values without a branch, since nearly always all are in range. NaN is not below the limit either.
CAUSEWAY_MULTIVERSION
bool AllInRange(const float* values, size_t count) {
  int outside = 0;
  for (size_t i = 0; i < count; ++i) outside |= !(std::abs(values[i]) < core::kMaxMagnitude);
  return outside == 0;
}

uint8_t* Bytes(std::string& text) { return reinterpret_cast<uint8_t*>(text.data()); }

}  // namespace

float GainFor(float beta) { return beta > 0 ? 1.25f : 1.0f; }

std::optional<size_t> FirstOutOfRange(std::span<const float> values) {
  if (AllInRange(values.data(), values.size())) return std::nullopt;
  size_t i = 0;
  while (std::abs(values[i]) < core::kMaxMagnitude) ++i;
  return i;
}

ChunkWriter::ChunkWriter(const ChunkSpan& span, float gain) : span_(span), codec_(GetCodec(span.codec)), gain_(gain) {
  CHECK(span.first_unit >= 0 && span.values >= 1);
  const ChunkLayout layout(span.codec, span.values);
  CHECK(layout.size <= core::kMaxChunkBytes);
  bytes_.resize(layout.size, '\0');
}

void ChunkWriter::Append(std::span<const float> values, std::span<float> decoded) {
  CHECK(appended_ % core::kUnitValues == 0 && values.size() == decoded.size());
  CHECK(appended_ + static_cast<int64_t>(values.size()) <= span_.values);
  const ChunkLayout layout(span_.codec, span_.values);
  const int64_t block = appended_ / core::kBlockValues;
  uint8_t* scales = Bytes(bytes_) + layout.scales + block * codec_.scale_bytes();
  uint8_t* codes = Bytes(bytes_) + layout.codes + block * codec_.code_bytes();
  codec_.Encode(values, gain_, scales, codes);
  codec_.Decode(scales, codes, decoded);
  appended_ += values.size();
}

std::string ChunkWriter::Finish() {
  CHECK(appended_ == span_.values);
  char* header = bytes_.data();
  StoreField(header, kMagicOffset, kChunkMagic);
  StoreField(header, kCodecOffset, static_cast<uint8_t>(span_.codec));
  StoreField(header, kFirstUnitOffset, static_cast<uint64_t>(span_.first_unit));
  StoreField(header, kValuesOffset, static_cast<uint64_t>(span_.values));
  StoreField(header, kHashOffset, XXH3_64bits(header + kMagicOffset, bytes_.size() - kMagicOffset));
  return std::move(bytes_);
}

}  // namespace causeway::codecs
