#include "formats/token_looks.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <set>

#include "absl/strings/ascii.h"
#include "core/text.h"

namespace causeway::formats {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr size_t kTextBytes = 64;             // fewer may be tokens by chance
constexpr size_t kTextLetters = 12;           // different ones
constexpr size_t kMostTextBytes = 1 << 16;    // looked at
constexpr size_t kLeastFloats = 4;            // values
constexpr size_t kManyValues = 64;            // that do not look like another type by chance
constexpr size_t kManyShortFloats = 1 << 12;  // that no corpus has by chance
constexpr size_t kLeastCounted = 512, kLeastBytesCounted = 2048, kMostCounted = 1 << 20;  // values

enum class Order { kLittle, kBig };

uint16_t Swapped(uint16_t word) { return __builtin_bswap16(word); }
uint32_t Swapped(uint32_t word) { return __builtin_bswap32(word); }
uint64_t Swapped(uint64_t word) { return __builtin_bswap64(word); }

template <typename Word>
bool AllWords(std::span<const std::byte> bytes, Order order, auto&& holds) {
  for (size_t at = 0; at + sizeof(Word) <= bytes.size(); at += sizeof(Word)) {
    Word word;
    std::memcpy(&word, bytes.data() + at, sizeof word);
    if (!holds(order == Order::kBig ? Swapped(word) : word)) return false;
  }
  return true;
}

bool AreZeros(std::span<const std::byte> bytes) {
  return std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{0}; });
}

bool IsText(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), std::min(bytes.size(), kMostTextBytes));
  if (bytes.size() < kTextBytes || core::Utf8BytesOfPart(text) < text.size()) return false;
  if (std::set<char>(text.begin(), text.end()).size() < kTextLetters) return false;  // a few tokens again and again
  return std::ranges::all_of(text, [](char c) { return !absl::ascii_iscntrl(c) || absl::ascii_isspace(c); });
}

// The upper half of each value is that of a small number: zero, or, of a padding such as -100, its sign. In values of
// 4 bytes it may also be a few units, if there are many of them and the lower halves are those of a large vocabulary.
template <typename Word>
bool IsWide(std::span<const std::byte> bytes, Order order) {
  constexpr int kHalf = sizeof(Word) * 4;
  constexpr Word kFew = 16, kLargeLower = 1 << 12;
  const size_t values = bytes.size() / sizeof(Word);
  if (bytes.size() % sizeof(Word) != 0 || (order == Order::kBig && values <= 2)) return false;
  bool some_beyond = false, some_large = false;
  const bool wide = AllWords<Word>(bytes, order, [&](Word word) {
    const Word upper = word >> kHalf;
    some_large |= static_cast<Word>(word << kHalf) >> kHalf >= kLargeLower;
    if (upper == 0 || (upper == static_cast<Word>(~Word{0}) >> kHalf && (word >> (kHalf - 1) & 1) != 0)) return true;
    some_beyond = true;
    return sizeof(Word) == 4 && values >= kManyValues && upper < kFew;
  });
  return wide && (!some_beyond || some_large);
}

// Floats without a fraction, of less than 2^32. Large floats of 16 bits have none in any case: there a share of smaller
// ones has to say so, or many values.
template <typename Word>
bool AreWholeFloats(std::span<const std::byte> bytes, Order order, int mantissa_bits, Word bias, size_t least) {
  if (bytes.size() % sizeof(Word) != 0 || bytes.size() / sizeof(Word) < least) return false;
  size_t telling = 0;
  const bool whole = AllWords<Word>(bytes, order, [&](Word word) {
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

// The first and the second byte of values of 16 bits: the low and the high one of tokens.
struct BytesOfValues {
  std::array<int64_t, 256> first{}, second{};
  double values = 0;
};

BytesOfValues CountBytes(std::span<const std::byte> bytes) {
  BytesOfValues counts;
  const size_t values = std::min(bytes.size() / 2, kMostCounted);
  counts.values = static_cast<double>(values);
  for (size_t i = 0; i < values; ++i) {
    ++counts.first[std::to_integer<size_t>(bytes[2 * i])];
    ++counts.second[std::to_integer<size_t>(bytes[2 * i + 1])];
  }
  return counts;
}

int LargestOf(const std::array<int64_t, 256>& counts) {
  int largest = 255;
  while (largest > 0 && counts[static_cast<size_t>(largest)] == 0) --largest;
  return largest;
}

// Frequent tokens have small numbers, so that the high byte of a token varies less than its low one; and a vocabulary
// below 2^16 leaves out the largest high bytes.
bool IsBigEndian16(const BytesOfValues& counts) {
  constexpr double kBits = 2, kLowByteBits = 5, kShare = 0.02;
  constexpr int kLeftOut = 16;
  if (counts.values < kLeastCounted) return false;
  const double bits = Entropy(counts.second, counts.values);
  if (Entropy(counts.first, counts.values) + kBits <= bits) return true;
  if (bits < kLowByteBits) return false;  // a few tokens again and again
  const int largest = LargestOf(counts.first);
  const auto beyond = std::accumulate(counts.second.begin() + largest + 1, counts.second.end(), int64_t{0});
  return largest + kLeftOut <= LargestOf(counts.second) && static_cast<double>(beyond) >= kShare * counts.values;
}

// Both bytes are alike, and vary less than those of evenly spread tokens.
bool IsBytes(const BytesOfValues& counts) {
  constexpr double kAlike = 0.15, kEvenBits = 7.5;
  if (counts.values < kLeastBytesCounted || Entropy(counts.first, counts.values) > kEvenBits) return false;
  double difference = 0;
  for (size_t i = 0; i < counts.first.size(); ++i) {
    difference += static_cast<double>(std::abs(counts.first[i] - counts.second[i])) / 2;
  }
  return difference <= kAlike * counts.values && LargestOf(counts.first) > 1 && LargestOf(counts.second) > 1;
}

}  // namespace

std::string_view LookOfTokens(std::span<const std::byte> bytes) {
  constexpr Order kLittle = Order::kLittle, kBig = Order::kBig;
  if (AreZeros(bytes)) return "zeros alone";
  if (IsText(bytes)) return kLooksText;
  if (AreWholeFloats<uint64_t>(bytes, kLittle, 52, 1023, kLeastFloats)) return "float64";
  if (AreWholeFloats<uint64_t>(bytes, kBig, 52, 1023, kLeastFloats)) return "big-endian float64";
  if (IsWide<uint64_t>(bytes, kLittle)) return "int64";
  if (IsWide<uint64_t>(bytes, kBig)) return "big-endian int64";
  if (AreWholeFloats<uint32_t>(bytes, kLittle, 23, 127, kLeastFloats)) return "float32";
  if (AreWholeFloats<uint32_t>(bytes, kBig, 23, 127, kLeastFloats)) return "big-endian float32";
  if (IsWide<uint32_t>(bytes, kLittle)) return kLooksUint32;
  if (IsWide<uint32_t>(bytes, kBig)) return "big-endian uint32";
  if (AreWholeFloats<uint16_t>(bytes, kLittle, 10, 15, kManyValues)) return "float16";
  if (AreWholeFloats<uint16_t>(bytes, kLittle, 7, 127, kManyValues)) return "bfloat16";
  const BytesOfValues counts = CountBytes(bytes);
  if (IsBigEndian16(counts)) return "big-endian uint16";
  return IsBytes(counts) ? "uint8" : "";
}

bool FitsBigEndian(std::span<const std::byte> bytes, int64_t width, int64_t vocab_size) {
  constexpr size_t kLeastValues = 8;
  if (bytes.size() < kLeastValues * static_cast<size_t>(width)) return false;
  const auto fits = [&](auto word) { return static_cast<int64_t>(word) < vocab_size; };
  return width == 2 ? AllWords<uint16_t>(bytes, Order::kBig, fits) : AllWords<uint32_t>(bytes, Order::kBig, fits);
}

}  // namespace causeway::formats
