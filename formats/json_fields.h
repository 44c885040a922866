// Rows of settings (formats/fields.h) as JSON, in their order. Not-a-number is null.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "formats/fields.h"

namespace causeway::formats {

class JsonWriter : public Fields {
 public:
  explicit JsonWriter(nlohmann::ordered_json* json) : sections_{json} { *json = nlohmann::ordered_json::object(); }

 private:
  void Visit(const Key& key, FieldValue value, const std::string& expected) override;
  void Enter(const char* name) override;
  void EnterItem(const char* name, size_t index) override;
  void Leave() override { sections_.pop_back(); }
  size_t Count(const char* name, size_t now) override;

  std::vector<nlohmann::ordered_json*> sections_;  // from the whole to the current one
};

// Every key of the run's config, under run.yaml's names.
nlohmann::ordered_json ConfigJson(const core::RunConfig& config);

}  // namespace causeway::formats
