#include "core/text.h"

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

}  // namespace

std::string Clipped(std::string_view text, size_t most_bytes) {
  constexpr std::string_view kCut = "…";
  CHECK(most_bytes >= kCut.size());
  if (text.size() <= most_bytes) return std::string(text);
  size_t end = most_bytes - kCut.size();
  const auto continues = [&](size_t at) { return (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80; };
  while (end > 0 && continues(end)) --end;
  return std::string(text.substr(0, end)).append(kCut);
}

std::string Printable(std::string_view text) { return Escaped(text, "\n\t"); }

std::string Quoted(std::string_view text) { return absl::StrCat("'", Escaped(text, ""), "'"); }

}  // namespace causeway::core
