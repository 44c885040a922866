// The layout of a chunk (docs/wire_format.md, section "Chunk"), shared by the writer and the reader.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "codecs/chunk_plan.h"

namespace causeway::codecs {

static_assert(std::endian::native == std::endian::little, "the wire format is written by copying");

inline constexpr int64_t kHashOffset = 0;
inline constexpr int64_t kMagicOffset = 8;
inline constexpr int64_t kCodecOffset = 12;
inline constexpr int64_t kCompressedOffset = 13;
inline constexpr int64_t kReservedOffset = 14;  // 2 bytes
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

  int64_t scales;      // where the scales begin
  int64_t scales_end;  // where the scales end, before padding
  int64_t codes;
  int64_t codes_end;
  int64_t size;
};

bool AllZero(absl::string_view bytes, int64_t begin, int64_t end);

template <typename... Parts>
absl::Status BadChunk(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("chunk: ", parts...));
}

// A validated header. All sizes derived from it fit into 64 bits, and the chunk into core::kMaxChunkBytes.
struct ChunkHeader {
  ChunkSpan span;
  bool compressed = false;
};

// INVALID_ARGUMENT gives the expected and the actual value.
absl::StatusOr<ChunkHeader> ParseChunkHeader(absl::string_view bytes);
absl::Status CheckChunkHash(absl::string_view bytes);  // REQUIRES: `bytes` holds at least a header

// Writes the hash of all bytes behind it.
void SealChunk(char* bytes, int64_t size);

}  // namespace causeway::codecs
