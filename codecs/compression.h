// Lossless compression of a chunk, where it pays: int8 and int4, whose small codes are the frequent ones, and bfloat16
// with its high bytes before its low ones, because exponents repeat.
//
//   | header, compressed = 1 | zstd frame (level 1) of scales and codes |
//
// 1-bit, e3m0 and Lloyd-Max codes use all their bits evenly; they and every chunk that would not shrink travel as they
// are. Source: docs/wire_format.md, section "Chunk". Thread-safe.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace causeway::codecs {

// The smaller of the chunk and its compressed form.
std::string CompressChunk(std::string chunk);

// The chunk as it was before CompressChunk; one that is not compressed is returned as it is, unchecked.
// INVALID_ARGUMENT if the header, the hash or the compressed bytes are bad. Never makes more than core::kMaxChunkBytes.
absl::StatusOr<std::string> ExpandChunk(std::string bytes);

}  // namespace causeway::codecs
