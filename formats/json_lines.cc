#include "formats/json_lines.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "core/json_text.h"
#include "core/text.h"

namespace causeway::formats {
namespace {

using SortedJson = nlohmann::json;

constexpr size_t kEscapeBytes = 6;  // \ud83d

// A line that JSON has no words for, as JSON of the same length: all columns stay.
struct Mended {
  std::string line;
  std::vector<size_t> halves;  // where halves of characters were: now U+FFFD
};

bool IsWordOfNumbers(char c) { return absl::ascii_isalnum(c) || c == '-' || c == '+' || c == '.'; }

// NaN, ±Infinity, and numbers beyond float64.
bool IsNoFiniteNumber(const std::string& word) {
  if (word == "NaN" || word == "Infinity" || word == "-Infinity") return true;
  if (word.find_first_not_of("0123456789+-.eE") != std::string::npos) return false;
  char* end = nullptr;
  const double value = std::strtod(word.c_str(), &end);
  return end == word.c_str() + word.size() && std::isinf(value);
}

// The code of the escape at `at`, \uXXXX; nothing where there is none.
std::optional<int> EscapeAt(std::string_view line, size_t at) {
  if (at + kEscapeBytes > line.size() || line.substr(at, 2) != "\\u") return std::nullopt;
  const std::string digits(line.substr(at + 2, 4));
  if (!std::ranges::all_of(digits, [](char c) { return absl::ascii_isxdigit(c); })) return std::nullopt;
  return static_cast<int>(std::strtol(digits.c_str(), nullptr, 16));
}

bool IsHigh(std::optional<int> code) { return code && *code >= 0xD800 && *code <= 0xDBFF; }
bool IsLow(std::optional<int> code) { return code && *code >= 0xDC00 && *code <= 0xDFFF; }

// Goes over the escape at `at` of a string, and mends half of a character. Returns what follows.
size_t MendEscape(size_t at, Mended& mended) {
  const std::optional<int> code = EscapeAt(mended.line, at);
  if (IsHigh(code) && IsLow(EscapeAt(mended.line, at + kEscapeBytes))) return at + 2 * kEscapeBytes;
  if (!IsHigh(code) && !IsLow(code)) return at + 2;
  mended.halves.push_back(at);
  mended.line.replace(at, kEscapeBytes, "\\ufffd");
  return at + kEscapeBytes;
}

Mended Mend(std::string_view line) {
  Mended mended{.line = std::string(line)};
  bool in_string = false;
  for (size_t at = 0; at < mended.line.size();) {
    const char c = mended.line[at];
    if (in_string && c == '\\') {
      at = MendEscape(at, mended);
      continue;
    }
    size_t end = at + 1;
    if (c == '"') in_string = !in_string;
    if (!in_string && IsWordOfNumbers(c)) {
      while (end < mended.line.size() && IsWordOfNumbers(mended.line[end])) ++end;
      if (IsNoFiniteNumber(mended.line.substr(at, end - at))) {
        mended.line.replace(at, end - at, std::string(end - at - 1, ' ') + "0");
      }
    }
    at = end;
  }
  return mended;
}

// Where the text has a half of a character: it differs once that is another one. Nothing where it has none.
std::optional<size_t> HalfInText(const Mended& mended, const std::string& text) {
  const auto differs = [&](std::span<const size_t> halves) {
    std::string other = mended.line;
    for (const size_t at : halves) other.replace(at, kEscapeBytes, "\\ufffe");
    const std::optional<SortedJson> value = core::TryParseJson<SortedJson>(other);
    return !value || !value->is_object() || value->value("text", text) != text;
  };
  if (mended.halves.empty() || !differs(mended.halves)) return std::nullopt;
  for (const size_t& at : mended.halves) {
    if (differs({&at, 1})) return at;
  }
  return std::nullopt;
}

// Describes a value that is not an object with a text.
std::string Describe(const SortedJson& value) {
  if (!value.is_object()) return value.type_name();
  const auto text = value.find("text");
  return text == value.end() ? "an object without \"text\"" : absl::StrCat("a \"text\" that is ", text->type_name());
}

bool HasText(const SortedJson& value) {
  return value.is_object() && value.contains("text") && value["text"].is_string();
}

// The text of a line; an error says what was expected and got, after the file's name.
absl::StatusOr<std::string> TextOf(std::string_view line, int64_t number) {
  std::optional<SortedJson> value = core::TryParseJson<SortedJson>(line);
  const auto no_json = [&](size_t offset, const std::string& got) {
    return absl::InvalidArgumentError(absl::StrCat(": expected JSON, line ", number, ", column ",
                                                   core::PlaceInText(line, offset).column, ": got ", got));
  };
  if (!value) {
    const Mended mended = Mend(line);
    value = core::TryParseJson<SortedJson>(mended.line);
    if (!value) {
      const core::JsonFault fault = core::FaultOfJson(mended.line);
      return no_json(fault.offset, fault.offset >= mended.line.size() ? "the end of the line" : fault.got);
    }
    if (HasText(*value)) {
      if (const std::optional<size_t> half = HalfInText(mended, (*value)["text"].get_ref<const std::string&>())) {
        return no_json(*half, absl::StrCat(std::string(line.substr(*half, kEscapeBytes)),
                                           " in \"text\", half of a character (a lone surrogate)"));
      }
    }
  }
  if (HasText(*value)) return std::move((*value)["text"].get_ref<std::string&>());
  return absl::InvalidArgumentError(
      absl::StrCat(":", number, ": expected an object with \"text\", a string, got ", Describe(*value)));
}

}  // namespace

absl::StatusOr<std::vector<std::byte>> ReadJsonLines(const std::string& path, std::string_view contents) {
  std::string_view rest = core::WithoutByteOrderMark(contents);
  std::vector<std::byte> texts;
  for (int64_t number = 1; !rest.empty(); ++number) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const absl::StatusOr<std::string> text = TextOf(line, number);
    if (!text.ok()) return absl::InvalidArgumentError(absl::StrCat(path, text.status().message()));
    const auto bytes = std::as_bytes(std::span<const char>(*text));
    texts.insert(texts.end(), bytes.begin(), bytes.end());
    texts.push_back(std::byte{'\n'});
  }
  if (!texts.empty()) return texts;
  return absl::InvalidArgumentError(absl::StrCat(path, ": expected lines with \"text\", got blank ones alone"));
}

}  // namespace causeway::formats
