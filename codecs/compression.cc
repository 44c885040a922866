#include "codecs/compression.h"

#include <zstd.h>

#include "absl/strings/str_cat.h"
#include "codecs/chunk.h"
#include "codecs/chunk_layout.h"
#include "core/check.h"

namespace causeway::codecs {
namespace {

constexpr int kLevel = 1;  // higher ones gain under 2 % on these codes and cost several times as much

bool Pays(core::CodecId codec) {
  return codec == core::CodecId::kBfloat16 || codec == core::CodecId::kInt8 || codec == core::CodecId::kInt4;
}

// High bytes after low ones of each bfloat16, and back.
std::string SplitBytes(absl::string_view body) {
  std::string split(body.size(), '\0');
  for (size_t i = 0; i < body.size() / 2; ++i) {
    split[i] = body[2 * i];
    split[body.size() / 2 + i] = body[2 * i + 1];
  }
  return split;
}

void JoinBytes(absl::string_view split, char* body) {
  for (size_t i = 0; i < split.size() / 2; ++i) {
    body[2 * i] = split[i];
    body[2 * i + 1] = split[split.size() / 2 + i];
  }
}

absl::Status BadFrame(int64_t expected, const std::string& got) {
  return absl::InvalidArgumentError(
      absl::StrCat("chunk: expected a zstd frame of ", expected, " bytes after its header, got ", got));
}

}  // namespace

std::string CompressChunk(std::string chunk) {
  const auto codec = core::CodecFromNumber(LoadField<uint8_t>(chunk.data(), kCodecOffset));
  CHECK(codec.has_value());
  if (!Pays(*codec)) return chunk;
  const absl::string_view plain = absl::string_view(chunk).substr(kChunkHeaderBytes);
  const std::string split = *codec == core::CodecId::kBfloat16 ? SplitBytes(plain) : std::string();
  const absl::string_view body = split.empty() ? plain : absl::string_view(split);
  std::string result(kChunkHeaderBytes + ZSTD_compressBound(body.size()), '\0');
  const size_t size = ZSTD_compress(result.data() + kChunkHeaderBytes, result.size() - kChunkHeaderBytes, body.data(),
                                    body.size(), kLevel);
  if (ZSTD_isError(size) || size >= body.size()) return chunk;
  result.resize(kChunkHeaderBytes + size);
  result.replace(0, kChunkHeaderBytes, chunk, 0, kChunkHeaderBytes);
  StoreField<uint8_t>(result.data(), kCompressedOffset, 1);
  SealChunk(result.data(), std::ssize(result));
  return result;
}

absl::StatusOr<std::string> ExpandChunk(std::string bytes) {
  if (bytes.size() < static_cast<size_t>(kChunkHeaderBytes) || bytes[kCompressedOffset] == 0) return bytes;
  ASSIGN_OR_RETURN(const ChunkHeader header, ParseChunkHeader(bytes));
  RETURN_IF_ERROR(CheckChunkHash(bytes));
  const int64_t size = ChunkLayout(header.span.codec, header.span.values).size;
  const int64_t body_size = size - kChunkHeaderBytes;
  std::string body(body_size, '\0');
  const size_t got =
      ZSTD_decompress(body.data(), body.size(), bytes.data() + kChunkHeaderBytes, bytes.size() - kChunkHeaderBytes);
  if (ZSTD_isError(got)) return BadFrame(body_size, ZSTD_getErrorName(got));
  if (static_cast<int64_t>(got) != body_size) return BadFrame(body_size, absl::StrCat(got, " bytes"));
  std::string chunk(size, '\0');
  chunk.replace(0, kChunkHeaderBytes, bytes, 0, kChunkHeaderBytes);
  if (header.span.codec == core::CodecId::kBfloat16) {
    JoinBytes(body, chunk.data() + kChunkHeaderBytes);
  } else {
    chunk.replace(kChunkHeaderBytes, body.size(), body);
  }
  StoreField<uint8_t>(chunk.data(), kCompressedOffset, 0);
  SealChunk(chunk.data(), size);
  return chunk;
}

}  // namespace causeway::codecs
