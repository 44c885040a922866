// Lossless compression of a chunk, where it pays: codes of 4 and 8 bits, some of which are frequent, and bfloat16 with
// its low bytes before its high ones, because exponents repeat.
//
//   | header, compressed = 1 | zstd frame (level 1) of scales and codes |
//
// Codes of fewer bits are distributed evenly, or nearly so; those codecs, float32 and every chunk that would not shrink
// are sent uncompressed. docs/codecs.md has the gain. Source: docs/wire_format.md, section "Chunk". Thread-safe.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace causeway::codecs {

// The smaller of the chunk and its compressed form.
std::string CompressChunk(std::string chunk);

bool IsCompressed(absl::string_view bytes);  // according to its header; any bytes may follow

// The chunk as it was before CompressChunk; one that is not compressed is returned as it is, unchecked.
// INVALID_ARGUMENT if the header, the hash or the compressed bytes are bad, or the codec is never compressed. Never
// produces more than core::kMaxChunkBytes.
absl::StatusOr<std::string> ExpandChunk(std::string bytes);

}  // namespace causeway::codecs
