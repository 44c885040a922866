// Says what a file of raw tokens looks like that is written in another type than the run reads: read as uint16, the
// int64 values 5, 9 are 5 0 0 0 9 0 0 0, and a model would learn the zeros.
//
//   bytes of a .bin ─► "int64" | "uint32" | "float32" | "big-endian uint16" | "text" | …  or nothing
//
// Tokens are whole numbers far below 2^32, which each type shows in a way of its own: halves that are always zero,
// floats without a fraction, high bytes that vary more than low ones. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace causeway::formats {

inline constexpr std::string_view kLooksUint32 = "uint32", kLooksText = "text";

// The type that the bytes look like, empty for uint16 and for what cannot be told. Reads as few bytes as decide it.
std::string_view LookOfTokens(std::span<const std::byte> bytes);

// Whether all values are below `vocab_size` with their bytes in the other order, and there are several of them.
bool FitsBigEndian(std::span<const std::byte> bytes, int64_t width, int64_t vocab_size);

}  // namespace causeway::formats
