#include "worker/library/json_object.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/json_text.h"

namespace causeway::worker {
namespace {

using nlohmann::json;

bool IsString(const json& value) { return value.is_string(); }
bool IsBoolean(const json& value) { return value.is_boolean(); }
bool IsInteger(const json& value) { return value.is_number_integer(); }
bool IsFiniteAndNotNegative(const json& value) {
  return value.is_number() && value.get<double>() >= 0 && std::isfinite(value.get<double>());
}

}  // namespace

absl::StatusOr<JsonObject> JsonObject::Parse(const std::string& text, const std::string& name) {
  ASSIGN_OR_RETURN(json values, core::ParseJson<json>(text, name));
  if (values.is_object()) return JsonObject(std::move(values), name);
  return absl::InvalidArgumentError(absl::StrCat(name, ": expected an object in JSON, got ", core::ShownJson(values)));
}

absl::Status JsonObject::Wrong(const std::string& key, const std::string& expected, const std::string& got) const {
  return absl::InvalidArgumentError(
      absl::StrCat(name_, ": ", core::Shown(key), ": expected ", expected, ", got ", core::Shown(got)));
}

json JsonObject::Take(const std::string& key) {
  const auto found = values_.find(key);
  if (found == values_.end()) return nullptr;
  json value = std::move(*found);
  values_.erase(found);
  return value;
}

template <typename Value>
absl::Status JsonObject::ReadIf(const std::string& key, bool (*fits)(const json&), const char* expected, Value& value) {
  const json given = Take(key);
  if (given.is_null()) return absl::OkStatus();
  if (!fits(given)) return Wrong(key, expected, core::ShownJson(given));
  value = given.get<Value>();
  return absl::OkStatus();
}

absl::Status JsonObject::Read(const std::string& key, std::string& value) {
  return ReadIf(key, IsString, "a string", value);
}

absl::Status JsonObject::Read(const std::string& key, bool& value) {
  return ReadIf(key, IsBoolean, "true or false", value);
}

absl::Status JsonObject::Read(const std::string& key, int64_t& value) {
  return ReadIf(key, IsInteger, "an integer", value);
}

absl::Status JsonObject::Read(const std::string& key, double& value) {
  return ReadIf(key, IsFiniteAndNotNegative, "a number, 0 or more", value);
}

absl::Status JsonObject::Read(const std::string& key, std::vector<int64_t>& value) {
  const auto integers = [](const json& given) { return given.is_array() && std::ranges::all_of(given, IsInteger); };
  return ReadIf(key, integers, "a list of integers", value);
}

absl::Status JsonObject::Read(const std::string& key, std::map<std::string, std::string>& value) {
  const auto strings = [](const json& given) { return given.is_object() && std::ranges::all_of(given, IsString); };
  return ReadIf(key, strings, "an object of strings", value);
}

absl::StatusOr<std::optional<JsonObject>> JsonObject::ReadObject(const std::string& key) {
  json given = Take(key);
  if (given.is_null()) return std::nullopt;
  if (!given.is_object()) return Wrong(key, "an object", core::ShownJson(given));
  return JsonObject(std::move(given), key);
}

absl::StatusOr<std::vector<JsonObject>> JsonObject::ReadObjects(const std::string& key) {
  json given = Take(key);
  const bool objects = given.is_array() && !given.empty() &&
                       std::ranges::all_of(given, [](const json& item) { return item.is_object(); });
  if (!objects) return Wrong(key, "a list of at least one object", core::ShownJson(given));
  std::vector<JsonObject> read;
  for (json& item : given) read.push_back(JsonObject(std::move(item), absl::StrCat(key, " ", read.size())));
  return read;
}

absl::Status JsonObject::Finish() const {
  if (values_.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name_, ": expected keys that causeway.h lists, got \"", core::Shown(values_.begin().key()), "\""));
}

}  // namespace causeway::worker
