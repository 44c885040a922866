#include "formats/fields.h"

#include <charconv>

#include "formats/run_fields.h"

namespace causeway::formats {
namespace {

using Json = nlohmann::ordered_json;

// The double that prints as short as the float does: 0.7, not 0.699999988079071.
double Shortest(float value) {
  char text[32];
  const char* end = std::to_chars(text, text + sizeof text, value).ptr;
  double result = value;
  std::from_chars(text, end, result);
  return result;
}

struct AsJson {
  template <typename T>
  Json operator()(const T* value) const {
    return Json(*value);
  }
  Json operator()(AutoInteger value) const { return *value.value == -1 ? Json(kAuto) : Json(*value.value); }
  Json operator()(const float* value) const { return Shortest(*value); }
  template <typename T>
  Json operator()(const std::map<std::string, T>* value) const {
    Json json = Json::object();
    for (const auto& [key, one] : *value) json[key] = (*this)(&one);
    return json;
  }
};

}  // namespace

void JsonWriter::Visit(const Key& key, FieldValue value, const std::string& /*expected*/) {
  (*sections_.back())[key.name] = std::visit(AsJson(), value);
}

void JsonWriter::Enter(const char* name) {
  Json& section = (*sections_.back())[name];
  section = Json::object();
  sections_.push_back(&section);
}

void JsonWriter::EnterItem(const char* name, size_t /*index*/) {
  Json& list = (*sections_.back())[name];
  list.push_back(Json::object());
  sections_.push_back(&list.back());
}

size_t JsonWriter::Count(const char* name, size_t now) {
  (*sections_.back())[name] = Json::array();
  return now;
}

Json ConfigJson(const core::RunConfig& config) {
  Json json;
  JsonWriter writer(&json);
  core::RunConfig visited = config;
  RunFields(visited, writer);
  return json;
}

}  // namespace causeway::formats
