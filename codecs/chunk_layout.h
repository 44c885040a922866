// Where the parts of a chunk lie (docs/wire_format.md, section "Chunk"): shared by the writer and the reader.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "core/codec_id.h"

namespace causeway::codecs {

static_assert(std::endian::native == std::endian::little, "the wire format is written by copying");

inline constexpr int64_t kHashOffset = 0;
inline constexpr int64_t kMagicOffset = 8;
inline constexpr int64_t kCodecOffset = 12;
inline constexpr int64_t kReservedOffset = 13;  // 3 bytes
inline constexpr int64_t kFirstUnitOffset = 16;
inline constexpr int64_t kValuesOffset = 24;
inline constexpr int64_t kRotationSeedOffset = 32;
inline constexpr int64_t kTailOffset = 40;  // zero to the end of the header

inline constexpr uint32_t kChunkMagic = 0x31435743;  // "CWC1"

template <typename T>
T LoadField(const char* bytes, int64_t offset) {
  T value;
  std::memcpy(&value, bytes + offset, sizeof(value));
  return value;
}

template <typename T>
void StoreField(char* bytes, int64_t offset, T value) {
  std::memcpy(bytes + offset, &value, sizeof(value));
}

// Byte offsets of the parts of a chunk of `values` values.
struct ChunkLayout {
  ChunkLayout(core::CodecId codec, int64_t values);

  int64_t scales;      // where the scales begin,
  int64_t scales_end;  // and end, before padding
  int64_t codes;
  int64_t codes_end;
  int64_t size;
};

}  // namespace causeway::codecs
