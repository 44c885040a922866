// Appends JSON to a string, in one pass: a status of 64 sites has 8,000 values, and a tree of them takes ten times as
// long to build and to print. Numbers that are not finite are null; strings that are not UTF-8 are shown with
// replacement characters. The caller keeps the order: Key before each value of an object, and an End for each Begin.
// One owner.
#pragma once

#include <charconv>
#include <cmath>
#include <concepts>
#include <optional>
#include <string>
#include <string_view>

namespace causeway::server {

class JsonWriter {
 public:
  void BeginObject() { Begin('{'); }
  void EndObject() { End('}'); }
  void BeginArray() { Begin('['); }
  void EndArray() { End(']'); }

  // The key of an object's next value: a name that needs no escaping, made of letters, digits, ".", "_" and "-" only.
  void Key(std::string_view name) {
    Separate();
    text_.append("\"").append(name).append("\":");
    separate_ = false;
  }

  void Value(std::integral auto value) { Number(value); }
  void Value(bool value) { Raw(value ? "true" : "false"); }
  void Value(double value) {
    if (!std::isfinite(value)) return Null();
    Number(value);
  }
  void Value(std::string_view text);
  void Value(const std::string& text) { Value(std::string_view(text)); }
  void Value(const char* text) { Value(std::string_view(text)); }
  template <typename T>
  void Value(const std::optional<T>& value) {
    if (!value) return Null();
    Value(*value);
  }
  void Null() { Raw("null"); }
  void Raw(std::string_view json) {  // a whole value
    Separate();
    text_.append(json);
    separate_ = true;
  }

  template <typename T>
  void Member(std::string_view name, const T& value) {
    Key(name);
    Value(value);
  }

  // A whole object: names and values in turn.
  template <typename T, typename... More>
  void Object(std::string_view name, const T& value, const More&... more) {
    BeginObject();
    Members(name, value, more...);
    EndObject();
  }

  // Null if there is no value, else what `write` writes for it.
  template <typename T>
  void OrNull(std::string_view name, const std::optional<T>& value, const auto& write) {
    Key(name);
    value ? write(*value) : Null();
  }

  std::string Take() && { return std::move(text_); }

 private:
  template <typename T, typename... More>
  void Members(std::string_view name, const T& value, const More&... more) {
    Member(name, value);
    if constexpr (sizeof...(more) > 0) Members(more...);
  }

  void Separate() {
    if (separate_) text_.push_back(',');
  }
  void Begin(char bracket) {
    Separate();
    text_.push_back(bracket);
    separate_ = false;
  }
  void End(char bracket) {
    text_.push_back(bracket);
    separate_ = true;
  }
  template <typename T>
  void Number(T value) {
    char digits[32];  // the shortest that reads back as the same value
    Raw({digits, static_cast<size_t>(std::to_chars(digits, digits + sizeof digits, value).ptr - digits)});
  }

  std::string text_;
  bool separate_ = false;  // a value was written, and nothing begun since
};

}  // namespace causeway::server
