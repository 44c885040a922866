#include "formats/field_check.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace causeway::formats {

std::string Origin::Locate(const std::string& path) const {
  std::string section = path;
  while (!section.empty() && !Has(section)) {
    const size_t dot = section.find_last_of(".[");
    section.resize(dot == std::string::npos ? 0 : dot);
  }
  const auto line = lines.find(section);
  std::string place = file;
  if (line != lines.end()) absl::StrAppend(&place, ":", line->second);
  if (!path.empty()) absl::StrAppend(&place, ": ", path);
  return place;
}

absl::Status FieldError(const Origin& origin, const std::string& path, std::string_view expected,
                        std::string_view got) {
  return absl::InvalidArgumentError(
      absl::StrCat(origin.Locate(path), ": expected ", std::string(expected), ", got ", std::string(got)));
}

void FieldCheck::Expect(bool ok, const std::string& path, std::string_view expected, std::string_view got) {
  if (!ok && status_.ok()) status_ = FieldError(origin_, path, expected, got);
}

void FieldCheck::Ok(const std::string& path, const absl::Status& status) {
  if (status.ok() || !status_.ok()) return;
  status_ = absl::InvalidArgumentError(absl::StrCat(origin_.Locate(path), ": ", std::string(status.message())));
}

int64_t FieldCheck::Integer(const std::string& path, int64_t value, int64_t least, int64_t most,
                            std::string_view reason) {
  if (value >= least && value <= most) return value;
  std::string expected = least == most ? absl::StrCat(least) : absl::StrCat(least, " to ", most);
  if (!reason.empty()) absl::StrAppend(&expected, " (", std::string(reason), ")");
  const bool by_default = !origin_.lines.empty() && !origin_.Has(path);
  Expect(false, path, expected, absl::StrCat(value, by_default ? " by default" : ""));
  return value < least ? least : most;
}

double FieldCheck::NotNegative(const std::string& path, double value) {
  Expect(std::isfinite(value) && value >= 0, path, "a number of 0 or more", absl::StrCat(value));
  return value;
}

double FieldCheck::Positive(const std::string& path, double value) {
  Expect(std::isfinite(value) && value > 0, path, "a number above 0", absl::StrCat(value));
  return value;
}

double FieldCheck::Share(const std::string& path, double value) {
  Expect(value >= 0 && value <= 1, path, "0 to 1", absl::StrCat(value));
  return value;
}

double FieldCheck::ShareBelowOne(const std::string& path, double value) {
  Expect(value >= 0 && value < 1, path, "0 to less than 1", absl::StrCat(value));
  return value;
}

}  // namespace causeway::formats
