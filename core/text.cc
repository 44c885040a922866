#include "core/text.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/check.h"

namespace causeway::core {
namespace {

constexpr size_t kShownBytes = 200;
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

// The code of a whole character.
uint32_t CodeOf(std::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  if (character.size() == 1) return first;
  uint32_t code = first & (0x7F >> character.size());
  for (const char c : character.substr(1)) code = code << 6 | (static_cast<unsigned char>(c) & 0x3F);
  return code;
}

// Terminals obey the control characters of C0 and C1; the others hide what follows, or turn it around.
bool IsControl(uint32_t code) {
  return code < 0x20 || (code >= 0x7F && code < 0xA0) || code == 0x061C || code == 0x200E || code == 0x200F ||
         (code >= 0x2028 && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069);
}

void AppendEscape(uint32_t code, std::string& result) {
  if (code == '\n' || code == '\r' || code == '\t') {
    result.append(code == '\n' ? "\\n" : code == '\r' ? "\\r" : "\\t");
  } else if (code < 0x100) {
    absl::StrAppend(&result, "\\x", absl::Hex(code, absl::kZeroPad2));
  } else {
    absl::StrAppend(&result, "\\u", absl::Hex(code, absl::kZeroPad4));
  }
}

std::string Escaped(std::string_view text, std::string_view stay) {
  std::string result;
  while (!text.empty()) {
    const auto first = static_cast<unsigned char>(text[0]);
    const Sequence sequence = SequenceOf(first);
    const bool is_character = BeginsCharacter(text, sequence, /*whole=*/true);
    const std::string_view character = text.substr(0, is_character ? sequence.bytes : 1);
    text.remove_prefix(character.size());
    const uint32_t code = is_character ? CodeOf(character) : first;
    if (is_character && (!IsControl(code) || (code < 0x80 && stay.find(character[0]) != std::string_view::npos))) {
      result.append(character);
    } else {
      AppendEscape(code, result);
    }
  }
  return result;
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

std::string InOneLine(std::string_view text) { return Escaped(text, ""); }

std::string Shown(std::string_view text) { return InOneLine(Clipped(text, kShownBytes)); }

std::string Quoted(std::string_view text) { return absl::StrCat("'", InOneLine(text), "'"); }

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

size_t EditDistance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t changed = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({changed, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace causeway::core
