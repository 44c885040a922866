// The declaration of a run's settings: for each section of run.yaml one function, with a row for each key
// (formats/run_fields.h). A visitor does something with each:
//
//   RunFields ─┬─ MessageReader   message → core::RunConfig, with all checks     (formats/run_config_message.cc)
//              ├─ MessageWriter   core::RunConfig → message
//              ├─ JsonWriter      core::RunConfig → JSON                         (formats/fields.h)
//              ├─ FieldsCheck     the checks alone
//              └─ Settings        names, defaults, classes, sentences: docs/reference.md, completion, `causewayctl set`
//
// A row may name bounds that an earlier row has read. Not thread-safe.
#pragma once

#include <concepts>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "formats/config_names.h"
#include "formats/field_check.h"

namespace causeway::formats {

// When a change of a setting of a running run holds.
enum class Holds {
  kFixed,    // never: the run keeps the value it began with
  kAtOnce,   // as soon as it is changed, since it affects no bit of a closed round
  kByRound,  // from some version of each fragment on
  kByStep,   // from some inner step on
  kByStart,  // from the next start of the coordinator, or of each site, on
};

// Whether `causewayctl set` takes a key that may change by round or by step.
enum class Set { kTaken, kNotYet };

struct Key {
  const char* name;
  Holds holds;
  const char* says;  // the description: one clause, for the reference
  Set set = Set::kTaken;
};

// An integer that may be `auto`, which is −1.
struct AutoInteger {
  int64_t* value;
};

using FieldValue =
    std::variant<int64_t*, AutoInteger, uint64_t*, bool*, float*, double*, std::string*, std::vector<int64_t>*,
                 std::vector<std::string>*, std::vector<std::vector<std::string>>*, std::map<std::string, int64_t>*,
                 std::map<std::string, float>*>;

class Fields {
 public:
  virtual ~Fields() = default;

  // The mistakes, where values are read or checked; otherwise null.
  FieldCheck* check() const { return check_; }
  bool Reads() const { return check_ != nullptr; }
  std::string Path(std::string_view name) const { return absl::StrCat(path_, std::string(name)); }

  // Whether the current section has the key, where values are read.
  virtual bool Given(const char* /*name*/) const { return false; }
  // Whether to visit a row that a config has only if `present`; a reader always visits it, to look for it.
  virtual bool Wants(bool present) const { return Reads() || present; }

  template <std::integral T>
  void Integer(const Key& key, T* value, int64_t least, int64_t most, std::string_view reason = "") {
    int64_t read = *value;
    Visit(key, &read,
          reason.empty() ? RangeText(least, most, "") : absl::StrCat(least, " or more (", std::string(reason), ")"));
    *value = static_cast<T>(Reads() ? check_->Integer(Path(key.name), read, least, most, reason) : read);
  }
  void Any(const Key& key, FieldValue value, const std::string& expected) { Visit(key, value, expected); }
  template <std::floating_point T>
  void NotNegative(const Key& key, T* value) {
    Visit(key, value, "0 or more");
    if (Reads()) check_->NotNegative(Path(key.name), *value);
  }
  template <std::floating_point T>
  void Positive(const Key& key, T* value) {
    Visit(key, value, "above 0");
    if (Reads()) check_->Positive(Path(key.name), *value);
  }
  template <std::floating_point T>
  void Share(const Key& key, T* value) {
    Visit(key, value, "0 to 1");
    if (Reads()) check_->Share(Path(key.name), *value);
  }
  template <std::floating_point T>
  void ShareBelowOne(const Key& key, T* value) {
    Visit(key, value, "0 to less than 1");
    if (Reads()) check_->ShareBelowOne(Path(key.name), *value);
  }
  template <typename T>
  void OneOf(const Key& key, T* value, const Names<T>& names) {
    std::string name = NameOf(*value, names), expected;
    for (const auto& [one, unused] : names) absl::StrAppend(&expected, expected.empty() ? "" : " | ", one);
    Visit(key, &name, expected);
    if (Reads()) *value = check_->OneOf(Path(key.name), name, names);
  }

  template <typename Inside>
  void Section(const char* name, Inside inside) {
    const size_t outer = path_.size();
    absl::StrAppend(&path_, name, ".");
    Enter(name);
    inside();
    Leave();
    path_.resize(outer);
  }
  // A section that may be absent.
  template <typename T, typename Inside>
  void OptionalSection(const char* name, std::optional<T>* value, Inside inside) {
    if (!Present(name, value->has_value())) return;
    if (!value->has_value()) value->emplace();
    Section(name, [&] { inside(**value); });
  }
  // A list of sections.
  template <typename T, typename Inside>
  void Each(const char* name, std::vector<T>* items, Inside inside) {
    items->resize(Count(name, items->size()));
    for (size_t i = 0; i < items->size(); ++i) {
      const size_t outer = path_.size();
      absl::StrAppend(&path_, name, "[", i, "].");
      EnterItem(name, i);
      inside((*items)[i]);
      Leave();
      path_.resize(outer);
    }
  }

 protected:
  explicit Fields(FieldCheck* check = nullptr, std::string path = "") : check_(check), path_(std::move(path)) {}

  // Reads the value, writes it, or passes over it.
  virtual void Visit(const Key& key, FieldValue value, const std::string& expected) = 0;
  virtual void Enter(const char* name) = 0;
  virtual void EnterItem(const char* name, size_t index) = 0;
  virtual void Leave() = 0;
  virtual bool Present(const char* /*name*/, bool now) const { return now; }
  virtual size_t Count(const char* /*name*/, size_t now) { return now; }

 private:
  FieldCheck* const check_;
  std::string path_;  // path of the current section: "inner.partition."
};

// Checks values as they are; `prefix` stands before the paths.
class FieldsCheck : public Fields {
 public:
  FieldsCheck(FieldCheck& check, const std::string& prefix) : Fields(&check, prefix) {}

 private:
  void Visit(const Key& /*key*/, FieldValue /*value*/, const std::string& /*expected*/) override {}
  void Enter(const char* /*name*/) override {}
  void EnterItem(const char* /*name*/, size_t /*index*/) override {}
  void Leave() override {}
};

// Rows of settings (formats/fields.h) as JSON, in their order. Not-a-number is null.
class JsonWriter : public Fields {
 public:
  explicit JsonWriter(nlohmann::ordered_json* json) : sections_{json} { *json = nlohmann::ordered_json::object(); }

 private:
  void Visit(const Key& key, FieldValue value, const std::string& expected) override;
  void Enter(const char* name) override;
  void EnterItem(const char* name, size_t index) override;
  void Leave() override { sections_.pop_back(); }
  size_t Count(const char* name, size_t now) override;

  std::vector<nlohmann::ordered_json*> sections_;  // the sections from the whole config to the current one
};

// Every key of the run's config, under run.yaml's names.
nlohmann::ordered_json ConfigJson(const core::RunConfig& config);

}  // namespace causeway::formats
