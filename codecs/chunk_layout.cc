#include "codecs/chunk_layout.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_format.h"
#include "codecs/chunk.h"
#include "core/digest.h"
#include "core/limits.h"

namespace causeway::codecs {
namespace {

int64_t PadTo64(int64_t bytes) { return (bytes + 63) / 64 * 64; }

uint64_t HashOf(const char* bytes, int64_t size) { return core::Xxh3(bytes + kMagicOffset, size - kMagicOffset); }

}  // namespace

bool AllZero(absl::string_view bytes, int64_t begin, int64_t end) {
  return std::all_of(bytes.begin() + begin, bytes.begin() + end, [](char c) { return c == 0; });
}

ChunkLayout::ChunkLayout(core::CodecId id, int64_t values) {
  const Codec& codec = GetCodec(id);
  scales = kChunkHeaderBytes;
  scales_end = scales + codec.ScaleBytes(values);
  codes = PadTo64(scales_end);
  codes_end = codes + codec.CodeBytes(values);
  size = PadTo64(codes_end);
}

absl::StatusOr<ChunkHeader> ParseChunkHeader(absl::string_view bytes) {
  if (bytes.size() < static_cast<size_t>(kChunkHeaderBytes)) {
    return BadChunk("expected at least ", kChunkHeaderBytes, " bytes, got ", bytes.size());
  }
  const char* header = bytes.data();
  const auto magic = LoadField<uint32_t>(header, kMagicOffset);
  if (magic != kChunkMagic) {
    return BadChunk(absl::StrFormat("expected magic %08x (CWC1), got %08x", kChunkMagic, magic));
  }
  const auto number = LoadField<uint8_t>(header, kCodecOffset);
  const std::optional<core::CodecId> codec = core::CodecFromNumber(number);
  if (!codec) return BadChunk("codec ", number, " is unknown; expected one of ", core::AllCodecNames());
  const auto compressed = LoadField<uint8_t>(header, kCompressedOffset);
  if (compressed > 1) return BadChunk("expected 0 or 1 for compressed, got ", compressed);
  const auto first_unit = LoadField<uint64_t>(header, kFirstUnitOffset);
  const auto values = LoadField<uint64_t>(header, kValuesOffset);
  if (first_unit > core::kMaxParameters) {
    return BadChunk("expected a first unit of at most ", core::kMaxParameters, ", got ", first_unit);
  }
  if (values < 1 || values > core::kMaxParameters) {
    return BadChunk("expected 1 to ", core::kMaxParameters, " values, got ", values);
  }
  const ChunkLayout layout(*codec, static_cast<int64_t>(values));
  if (layout.size > core::kMaxChunkBytes) {
    return BadChunk("expected at most ", core::kMaxChunkBytes, " bytes, got ", layout.size, " for ", values,
                    " values of ", core::CodecName(*codec));
  }
  const auto seed = LoadField<uint64_t>(header, kRotationSeedOffset);
  if (seed != 0 && !GetCodec(*codec).rotates()) {
    return BadChunk("codec ", core::CodecName(*codec), " does not rotate, but its rotation seed is ", seed);
  }
  if (!AllZero(bytes, kReservedOffset, kFirstUnitOffset) || !AllZero(bytes, kTailOffset, kChunkHeaderBytes)) {
    return BadChunk("expected zeros in the reserved bytes of the header");
  }
  return ChunkHeader{{*codec, static_cast<int64_t>(first_unit), static_cast<int64_t>(values), seed}, compressed == 1};
}

absl::Status CheckChunkHash(absl::string_view bytes) {
  const uint64_t hash = HashOf(bytes.data(), bytes.size());
  const auto expected = LoadField<uint64_t>(bytes.data(), kHashOffset);
  if (hash == expected) return absl::OkStatus();
  return BadChunk(absl::StrFormat("its hash is %016x, but its bytes hash to %016x", expected, hash));
}

void SealChunk(char* bytes, int64_t size) { StoreField(bytes, kHashOffset, HashOf(bytes, size)); }

}  // namespace causeway::codecs
