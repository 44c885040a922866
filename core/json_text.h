// The one parser of JSON that comes from people, other programs and peers. It says why a text is not JSON, and where.
//
//   {"layers": 16,
//    "layer_bytes": NaN}   ─►   costs.json: expected JSON, line 2, column 17: got NaN, which JSON does not have
//
// Lists and objects may be nested kDeepestJson deep: copying, writing or comparing a deeper value would need a stack as
// deep. `Json` is nlohmann::json or nlohmann::ordered_json. Pure.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace causeway::core {

inline constexpr int kDeepestJson = 64;

struct JsonFault {
  size_t offset = 0;  // byte of the text
  std::string got;    // the text found there, for people
};

// INVALID_ARGUMENT with the place of the first fault.
template <typename Json>
absl::StatusOr<Json> ParseJson(std::string_view text, const std::string& name);

// The same without an error text: nullopt for a text with a fault, which FaultOfJson then names.
template <typename Json>
std::optional<Json> TryParseJson(std::string_view text);
JsonFault FaultOfJson(std::string_view text);

// The value as part of an error message: cut, in one line, and printable.
template <typename Json>
std::string ShownJson(const Json& value);

}  // namespace causeway::core
