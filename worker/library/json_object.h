// A program's settings as a JSON object: each key is read once, and keys left over are refused.
//
// Errors are INVALID_ARGUMENT and name the key, the expected value and the value given. One owner at a time.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/text.h"

namespace causeway::worker {

class JsonObject {
 public:
  // `name` is the object's name in errors.
  static absl::StatusOr<JsonObject> Parse(const std::string& text, const std::string& name);

  void Rename(std::string name) { name_ = core::Shown(name); }

  // Leaves `value` unchanged if there is no such key.
  absl::Status Read(const std::string& key, std::string& value);
  absl::Status Read(const std::string& key, bool& value);
  absl::Status Read(const std::string& key, int64_t& value);
  absl::Status Read(const std::string& key, double& value);  // finite, 0 or more
  absl::Status Read(const std::string& key, std::vector<int64_t>& value);
  absl::Status Read(const std::string& key, std::map<std::string, std::string>& value);
  absl::StatusOr<std::optional<JsonObject>> ReadObject(const std::string& key);  // none: there is no such key
  absl::StatusOr<std::vector<JsonObject>> ReadObjects(const std::string& key);   // at least one

  absl::Status Wrong(const std::string& key, const std::string& expected, const std::string& got) const;
  absl::Status Finish() const;  // no key is left

 private:
  JsonObject(nlohmann::json values, std::string name) : values_(std::move(values)), name_(std::move(name)) {}

  nlohmann::json Take(const std::string& key);  // null: there is none
  template <typename Value>
  absl::Status ReadIf(const std::string& key, bool (*fits)(const nlohmann::json&), const char* expected, Value& value);

  nlohmann::json values_;
  std::string name_;
};

}  // namespace causeway::worker
