#include "formats/json_lines.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "formats/mapped_file.h"

namespace causeway::formats {
namespace {

constexpr size_t kShownBytes = 40;  // of a line that is wrong

// Describes a value that is not an object with a text.
std::string Describe(const nlohmann::json& value, std::string_view line) {
  if (value.is_discarded()) {
    const bool blank = line.find_first_not_of(" \t\r") == std::string_view::npos;
    return blank ? "an empty line"
                 : absl::StrCat("no JSON: ", std::string(line.substr(0, kShownBytes)),
                                line.size() > kShownBytes ? "…" : "");
  }
  if (!value.is_object()) return value.type_name();
  const auto text = value.find("text");
  return text == value.end() ? "an object without \"text\"" : absl::StrCat("a \"text\" that is ", text->type_name());
}

}  // namespace

absl::StatusOr<std::vector<std::byte>> ReadJsonLines(const std::string& path) {
  ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Map(path));
  std::string_view rest(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  std::vector<std::byte> texts;
  for (int64_t number = 1; !rest.empty(); ++number) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    const auto value = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!value.is_object() || !value.contains("text") || !value["text"].is_string()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ":", number, ": expected an object with \"text\", a string, got ", Describe(value, line)));
    }
    const auto& text = value["text"].get_ref<const std::string&>();
    const auto bytes = std::as_bytes(std::span(text));
    texts.insert(texts.end(), bytes.begin(), bytes.end());
    texts.push_back(std::byte{'\n'});
  }
  return texts;
}

}  // namespace causeway::formats
