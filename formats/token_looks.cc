#include "formats/token_looks.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <string_view>

#include "absl/strings/ascii.h"
#include "core/text.h"

namespace causeway::formats {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr size_t kTextBytes = 64;             // fewer may be tokens by chance
constexpr size_t kMostTextBytes = 1 << 16;    // looked at
constexpr size_t kLeastFloats = 4;            // values
constexpr size_t kLeastShortFloats = 64;      // of 16 bits, which more tokens look like
constexpr size_t kManyShortFloats = 1 << 12;  // that no corpus has by chance
constexpr size_t kLeastForEntropy = 512;      // values
constexpr size_t kMostForEntropy = 1 << 20;
constexpr double kEntropyBits = 2;  // by which the high byte of real tokens varies less than the low one

template <typename Word>
bool AllWords(std::span<const std::byte> bytes, auto&& holds) {
  for (size_t at = 0; at + sizeof(Word) <= bytes.size(); at += sizeof(Word)) {
    Word word;
    std::memcpy(&word, bytes.data() + at, sizeof word);
    if (!holds(word)) return false;
  }
  return true;
}

uint16_t Swapped(uint16_t word) { return __builtin_bswap16(word); }
uint32_t Swapped(uint32_t word) { return __builtin_bswap32(word); }

bool AreZeros(std::span<const std::byte> bytes) {
  return std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{0}; });
}

bool IsText(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), std::min(bytes.size(), kMostTextBytes));
  if (bytes.size() < kTextBytes || core::Utf8BytesOfPart(text) < text.size()) return false;
  return std::ranges::all_of(text, [](char c) { return !absl::ascii_iscntrl(c) || absl::ascii_isspace(c); });
}

// The upper half of each value is that of a small number or, of a padding such as -100, of its sign.
template <typename Word>
bool IsWide(std::span<const std::byte> bytes) {
  constexpr int kHalf = sizeof(Word) * 4;
  return bytes.size() % sizeof(Word) == 0 && AllWords<Word>(bytes, [](Word word) {
           const Word upper = word >> kHalf;
           return upper == 0 || (upper == static_cast<Word>(~Word{0}) >> kHalf && (word >> (kHalf - 1) & 1) != 0);
         });
}

// The half that comes first is zero in each value. Two values may be so by chance.
template <typename Word>
bool IsWideBigEndian(std::span<const std::byte> bytes) {
  return bytes.size() % sizeof(Word) == 0 && bytes.size() > 2 * sizeof(Word) &&
         AllWords<Word>(bytes, [](Word word) { return static_cast<Word>(word << (sizeof(Word) * 4)) == 0; });
}

// Floats without a fraction, of less than 2^32. Large floats of 16 bits have none in any case: there a share of smaller
// ones has to say so, or many values.
template <typename Word>
bool AreWholeFloats(std::span<const std::byte> bytes, int mantissa_bits, Word bias, size_t least) {
  if (bytes.size() % sizeof(Word) != 0 || bytes.size() / sizeof(Word) < least) return false;
  size_t telling = 0;
  const bool whole = AllWords<Word>(bytes, [&](Word word) {
    const Word positive = word & static_cast<Word>(static_cast<Word>(~Word{0}) >> 1);
    const Word exponent = positive >> mantissa_bits;
    if (positive == 0) return true;
    if (exponent < bias || exponent - bias >= 32) return false;
    const int whole_bits = std::min<int>(exponent - bias, mantissa_bits);
    telling += whole_bits < mantissa_bits;
    return (positive & ((Word{1} << (mantissa_bits - whole_bits)) - 1)) == 0;
  });
  const size_t values = bytes.size() / sizeof(Word);
  return whole && (telling > values / 64 || (telling > 0 && sizeof(Word) > 2) || values >= kManyShortFloats);
}

double Entropy(const std::array<int64_t, 256>& counts, double all) {
  double bits = 0;
  for (const int64_t count : counts) {
    if (count > 0) bits -= static_cast<double>(count) / all * std::log2(static_cast<double>(count) / all);
  }
  return bits;
}

// Frequent tokens have small numbers, so that the high byte of a token varies less than its low one.
bool IsBigEndian16(std::span<const std::byte> bytes) {
  const size_t values = std::min(bytes.size() / 2, kMostForEntropy);
  if (values < kLeastForEntropy) return false;
  std::array<int64_t, 256> first{}, second{};
  for (size_t i = 0; i < values; ++i) {
    ++first[std::to_integer<size_t>(bytes[2 * i])];
    ++second[std::to_integer<size_t>(bytes[2 * i + 1])];
  }
  const auto all = static_cast<double>(values);
  return Entropy(first, all) + kEntropyBits <= Entropy(second, all);
}

}  // namespace

std::string_view LookOfTokens(std::span<const std::byte> bytes) {
  if (AreZeros(bytes)) return "zeros alone";
  if (IsText(bytes)) return "text";
  if (AreWholeFloats<uint64_t>(bytes, 52, 1023, kLeastFloats)) return "float64";
  if (IsWide<uint64_t>(bytes)) return "int64";
  if (IsWideBigEndian<uint64_t>(bytes)) return "big-endian int64";
  if (AreWholeFloats<uint32_t>(bytes, 23, 127, kLeastFloats)) return "float32";
  if (IsWide<uint32_t>(bytes)) return kLooksUint32;
  if (IsWideBigEndian<uint32_t>(bytes)) return "big-endian uint32";
  if (AreWholeFloats<uint16_t>(bytes, 10, 15, kLeastShortFloats)) return "float16";
  if (AreWholeFloats<uint16_t>(bytes, 7, 127, kLeastShortFloats)) return "bfloat16";
  return IsBigEndian16(bytes) ? "big-endian uint16" : "";
}

bool FitsBigEndian(std::span<const std::byte> bytes, int64_t width, int64_t vocab_size) {
  constexpr size_t kLeastValues = 8;
  if (bytes.size() < kLeastValues * static_cast<size_t>(width)) return false;
  const auto fits = [&](auto word) { return static_cast<int64_t>(Swapped(word)) < vocab_size; };
  return width == 2 ? AllWords<uint16_t>(bytes, fits) : AllWords<uint32_t>(bytes, fits);
}

}  // namespace causeway::formats
