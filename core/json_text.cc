#include "core/json_text.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/text.h"

namespace causeway::core {
namespace {

constexpr size_t kShownJsonBytes = 40;
constexpr char kBlank[] = " \t\r\n";

bool IsOfWord(char c) { return absl::ascii_isalnum(c) || c == '-' || c == '+' || c == '.' || c == '_'; }

// The word around a byte of the text, as a view into it; empty where none stands.
std::string_view WordAt(std::string_view text, size_t offset) {
  size_t begin = offset, end = offset;
  while (end < text.size() && IsOfWord(text[end])) ++end;
  while (begin > 0 && end > offset && IsOfWord(text[begin - 1])) --begin;
  return text.substr(begin, end - begin);
}

// A word of another language, and what JSON has for it.
struct Foreign {
  std::string_view word, advice;
};
constexpr Foreign kForeign[] = {
    {"NaN", "which JSON does not have"},           {"nan", "which JSON does not have"},
    {"Infinity", "which JSON does not have"},      {"-Infinity", "which JSON does not have"},
    {"inf", "which JSON does not have"},           {"-inf", "which JSON does not have"},
    {"True", "which is Python's; JSON's is true"}, {"False", "which is Python's; JSON's is false"},
    {"None", "which is Python's; JSON's is null"}, {"undefined", "which is JavaScript's; JSON's is null"},
};

// Describes a byte at which the parser stopped.
std::string Describe(std::string_view text, size_t offset) {
  if (text.find_first_not_of(kBlank) == std::string_view::npos) return "an empty text";
  if (offset >= text.size()) return "the end of the text";
  if (Utf8Bytes(text) <= offset) {
    return absl::StrFormat("byte 0x%02x, which is no UTF-8", static_cast<unsigned char>(text[Utf8Bytes(text)]));
  }
  const char c = text[offset];
  if (c == '/' || c == '#') return "a comment, which JSON does not have";
  if (c == '\'') return "a single quote; JSON has double ones";
  if (c == '}' || c == ']') {
    const size_t before = text.find_last_not_of(kBlank, offset == 0 ? 0 : offset - 1);
    if (before != std::string_view::npos && text[before] == ',')
      return absl::StrCat("a comma before ", std::string(1, c));
  }
  if (absl::ascii_iscntrl(c)) return absl::StrFormat("the control character 0x%02x", static_cast<unsigned char>(c));
  const std::string_view word = WordAt(text, offset);
  const auto foreign = std::ranges::find(kForeign, word, &Foreign::word);
  if (foreign != std::end(kForeign)) return absl::StrCat(std::string(word), ", ", std::string(foreign->advice));
  return Clipped(word.empty() ? text.substr(offset, text.substr(offset).find('\n')) : word, kShownJsonBytes);
}

// The escape of a surrogate, \ud800 to \udfff, that ends before `offset` or holds it.
bool IsAtSurrogate(std::string_view text, size_t offset, size_t& begin) {
  const size_t escape = text.substr(0, std::min(text.size(), offset + 1)).rfind("\\u");
  if (escape == std::string_view::npos || offset > escape + 12 || escape + 4 > text.size()) return false;
  begin = escape;
  const char kind = absl::ascii_tolower(text[escape + 2]), half = absl::ascii_tolower(text[escape + 3]);
  return kind == 'd' && (half >= '8' && (half <= '9' || (half >= 'a' && half <= 'f')));
}

// The bracket that opens the first level too deep; the size of a text without one.
size_t TooDeepAt(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '"') in_string = !in_string;
    if (in_string && c == '\\') ++at;
    if (in_string) continue;
    if ((c == '[' || c == '{') && ++depth > kDeepestJson) return at;
    if (c == ']' || c == '}') --depth;
  }
  return text.size();
}

// The fault of a text that the parser does not take.
JsonFault FaultOfParser(std::string_view text) {
  try {
    const auto value = nlohmann::json::parse(text);
    return {.offset = 0, .got = value.type_name()};
  } catch (const nlohmann::json::parse_error& error) {
    size_t offset = error.byte == 0 ? 0 : error.byte - 1;
    const bool surrogate = std::string_view(error.what()).find("surrogate") != std::string_view::npos;
    if (size_t begin = 0; surrogate && IsAtSurrogate(text, offset, begin)) {
      return {begin, absl::StrCat(std::string(text.substr(begin, 6)), ", half of a character (a lone surrogate)")};
    }
    if (offset < text.size() && Utf8Bytes(text) <= offset) return {Utf8Bytes(text), Describe(text, offset)};
    const std::string got = Describe(text, offset);
    const std::string_view word = WordAt(text, offset);
    if (!word.empty() && got.starts_with(word)) offset = static_cast<size_t>(word.data() - text.data());
    return {offset, got};
  } catch (const nlohmann::json::exception& error) {  // a number beyond float64, which it quotes
    const std::string_view what = error.what();
    const size_t open = what.find('\''), close = what.rfind('\'');
    const std::string_view number =
        open < close ? what.substr(open + 1, close - open - 1) : std::string_view("a number");
    const size_t offset = text.find(number);
    return {offset == std::string_view::npos ? 0 : offset,
            absl::StrCat(Clipped(number, kShownJsonBytes), ", which is beyond the range of float64")};
  }
}

}  // namespace

JsonFault FaultOfJson(std::string_view text) {
  const size_t too_deep = TooDeepAt(text);
  if (too_deep == text.size()) return FaultOfParser(text);
  const JsonFault before = FaultOfParser(text.substr(0, too_deep));
  if (before.offset < too_deep) return before;
  return {too_deep, absl::StrCat("more than ", kDeepestJson, " lists and objects in each other")};
}

template <typename Json>
std::optional<Json> TryParseJson(std::string_view text) {
  if (TooDeepAt(text) < text.size()) return std::nullopt;
  Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) return std::nullopt;
  return value;
}

template <typename Json>
absl::StatusOr<Json> ParseJson(std::string_view text, const std::string& name) {
  if (std::optional<Json> value = TryParseJson<Json>(text)) return *std::move(value);
  const JsonFault fault = FaultOfJson(text);
  const TextPlace place = PlaceInText(text, fault.offset);
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": expected JSON, line ", place.line, ", column ", place.column, ": got ", fault.got));
}

template <typename Json>
std::string ShownJson(const Json& value) {
  return Shown(value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

template std::optional<nlohmann::json> TryParseJson(std::string_view);
template std::optional<nlohmann::ordered_json> TryParseJson(std::string_view);
template absl::StatusOr<nlohmann::json> ParseJson(std::string_view, const std::string&);
template absl::StatusOr<nlohmann::ordered_json> ParseJson(std::string_view, const std::string&);
template std::string ShownJson(const nlohmann::json&);
template std::string ShownJson(const nlohmann::ordered_json&);

}  // namespace causeway::core
