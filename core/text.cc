#include "core/text.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "core/check.h"

namespace causeway::core {
namespace {

// Terminals obey these bytes, and U+0080 to U+009F, which are two bytes in UTF-8.
bool IsControl(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(at) < 0x20 || byte(at) == 0x7F) return true;
  return byte(at) == 0xC2 && at + 1 < text.size() && byte(at + 1) >= 0x80 && byte(at + 1) < 0xA0;
}

std::string Escaped(std::string_view text, std::string_view stay) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (!IsControl(text, i) || stay.find(c) != std::string_view::npos) {
      result += c;
    } else if (c == '\n' || c == '\r' || c == '\t') {
      result.append(c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t");
    } else {
      const char code = static_cast<unsigned char>(c) == 0xC2 ? text[++i] : c;
      absl::StrAppend(&result, "\\x", absl::Hex(static_cast<unsigned char>(code), absl::kZeroPad2));
    }
  }
  return result;
}

constexpr size_t kMostCharacterBytes = 4;

bool Continues(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

// Bytes of the character that begins with `first`, 0 if none does; and what its second byte has to lie between.
struct Sequence {
  size_t bytes = 0;
  unsigned char least = 0x80, most = 0xBF;
};

Sequence SequenceOf(unsigned char first) {
  if (first < 0x80) return {1};
  if (first < 0xC2) return {};
  if (first < 0xE0) return {2};
  if (first == 0xE0) return {3, 0xA0};
  if (first == 0xED) return {3, 0x80, 0x9F};
  if (first < 0xF0) return {3};
  if (first == 0xF0) return {4, 0x90};
  if (first < 0xF4) return {4};
  if (first == 0xF4) return {4, 0x80, 0x8F};
  return {};
}

// Whether the bytes begin a character; `whole` says whether they have to hold all of it.
bool BeginsCharacter(std::string_view text, const Sequence& sequence, bool whole) {
  if (sequence.bytes == 0 || (whole && text.size() < sequence.bytes)) return false;
  for (size_t i = 1; i < std::min(text.size(), sequence.bytes); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (!Continues(text[i]) || (i == 1 && (byte < sequence.least || byte > sequence.most))) return false;
  }
  return true;
}

size_t SkipAscii(std::string_view text, size_t at) {
  constexpr uint64_t kHighBits = 0x8080808080808080;
  for (uint64_t eight = 0; at + sizeof eight <= text.size(); at += sizeof eight) {
    std::memcpy(&eight, text.data() + at, sizeof eight);
    if ((eight & kHighBits) != 0) break;
  }
  return at;
}

}  // namespace

std::string Clipped(std::string_view text, size_t most_bytes) {
  constexpr std::string_view kCut = "…";
  CHECK(most_bytes >= kCut.size());
  if (text.size() <= most_bytes) return std::string(text);
  size_t end = most_bytes - kCut.size();
  while (end > 0 && Continues(text[end])) --end;
  return std::string(text.substr(0, end)).append(kCut);
}

std::string Printable(std::string_view text) { return Escaped(text, "\n\t"); }

std::string Quoted(std::string_view text) { return absl::StrCat("'", Escaped(text, ""), "'"); }

std::string_view WithoutByteOrderMark(std::string_view text) {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  if (text.starts_with(kMark)) text.remove_prefix(kMark.size());
  return text;
}

size_t Utf8Bytes(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    at = SkipAscii(text, at);
    if (at == text.size()) break;
    const Sequence sequence = SequenceOf(static_cast<unsigned char>(text[at]));
    if (!BeginsCharacter(text.substr(at), sequence, /*whole=*/true)) return at;
    at += sequence.bytes;
  }
  return text.size();
}

size_t Utf8BytesOfPart(std::string_view text) {
  size_t begin = 0;
  while (begin < std::min(text.size(), kMostCharacterBytes - 1) && Continues(text[begin])) ++begin;
  const size_t end = begin + Utf8Bytes(text.substr(begin));
  if (end == text.size()) return end;
  const std::string_view rest = text.substr(end);
  const Sequence sequence = SequenceOf(static_cast<unsigned char>(rest[0]));
  return rest.size() < sequence.bytes && BeginsCharacter(rest, sequence, /*whole=*/false) ? text.size() : end;
}

TextPlace PlaceInText(std::string_view text, size_t offset) {
  const std::string_view before = text.substr(0, offset);
  const size_t line_begin = before.rfind('\n') + 1;  // 0 where there is none
  const auto newlines = std::ranges::count(before, '\n');
  const auto characters = std::ranges::count_if(before.substr(line_begin), [](char byte) { return !Continues(byte); });
  return {static_cast<size_t>(newlines) + 1, static_cast<size_t>(characters) + 1};
}

}  // namespace causeway::core
