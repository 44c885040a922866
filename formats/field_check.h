// Reports the error in a value that a user wrote, and its place:
//
//   run.yaml:12: sync.fragment_sync_delay: expected 0 to 19 (less than sync_every), got 25
//
// A FieldCheck checks one value after the other and keeps all mistakes, so that conversion code reads like a table of
// accepted values, and a user sees every mistake of a file at once, in the order of its lines. Not thread-safe.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace causeway::formats {

// Values above these limits are typos, and products of allowed values still fit into 64 bits.
inline constexpr int64_t kMaxSteps = 1'000'000'000'000;
inline constexpr int64_t kMaxWidth = 1 << 20;  // hidden size, sequence length, batch
inline constexpr char kSiteName[] = "a site's name of 1 to 64 characters A-Z a-z 0-9 . _ -";

// Where values came from: a file, and the 1-based line of each key that stands in it ("sync.sync_every" → 12; "" is the
// whole file). Lines are empty for a config that came as bytes.
struct Origin {
  std::string file;
  std::map<std::string, int> lines;

  bool Has(const std::string& path) const { return lines.count(path) > 0; }

  // "run.yaml:12: sync.sync_every"; for a key that is absent, the line of the section it belongs to.
  std::string Locate(const std::string& path) const;
  // The line that Locate gives; 0 where none is known.
  int LineOf(const std::string& path) const;
};

absl::Status FieldError(const Origin& origin, const std::string& path, std::string_view expected, std::string_view got);

// "0 to 19 (less than sync_every)".
std::string RangeText(int64_t least, int64_t most, std::string_view reason);

class FieldCheck {
 public:
  explicit FieldCheck(const Origin& origin) : origin_(origin) {}

  // INVALID_ARGUMENT with a line of text for each mistake, at most kMostShown.
  absl::Status status() const;
  bool HasMistakeAt(const std::string& path) const;

  void Expect(bool ok, const std::string& path, std::string_view expected, std::string_view got);

  // Notes a mistake if `status` is an error; its message has the expected and the actual value.
  void Ok(const std::string& path, const absl::Status& status);

  // Each returns the value; Integer returns the nearest bound for a wrong one, so that arithmetic on it is safe.
  // `reason` explains the bounds: "less than sync_every".
  int64_t Integer(const std::string& path, int64_t value, int64_t least, int64_t most, std::string_view reason = "");
  double NotNegative(const std::string& path, double value);  // `value` must also be finite, as below
  double Positive(const std::string& path, double value);
  double Share(const std::string& path, double value);          // 0 … 1
  double ShareBelowOne(const std::string& path, double value);  // 0 … 1, without 1

  // The value that `name` stands for among the accepted ones; the first of them if it is none.
  template <typename T>
  T OneOf(const std::string& path, std::string_view name, std::initializer_list<std::pair<const char*, T>> accepted) {
    std::string names;
    for (const auto& [accepted_name, value] : accepted) {
      if (name == accepted_name) return value;
      if (!names.empty()) names += " | ";
      names += accepted_name;
    }
    Expect(false, path, names, name);
    return accepted.begin()->second;
  }

 private:
  static constexpr size_t kMostShown = 20;

  struct Mistake {
    int line = 0;
    std::string path;
    std::string text;
  };

  void Add(const std::string& path, std::string text);

  const Origin& origin_;
  // Consequences of a mistake are left out: other mistakes at its path, in its section, and of defaults.
  std::vector<Mistake> mistakes_;
};

}  // namespace causeway::formats
