#include "formats/field_check.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "core/text.h"

namespace causeway::formats {
namespace {

constexpr size_t kMostMistakeBytes = 1000;

// Whether one of the paths is the other, or a part of it.
bool Overlap(const std::string& a, const std::string& b) {
  const std::string &outer = a.size() < b.size() ? a : b, &inner = a.size() < b.size() ? b : a;
  if (!inner.starts_with(outer)) return false;
  return outer.empty() || inner.size() == outer.size() || inner[outer.size()] == '.' || inner[outer.size()] == '[';
}

}  // namespace

int Origin::LineOf(const std::string& path) const {
  std::string section = path;
  while (!section.empty() && !Has(section)) {
    const size_t dot = section.find_last_of(".[");
    section.resize(dot == std::string::npos ? 0 : dot);
  }
  const auto line = lines.find(section);
  return line == lines.end() ? 0 : line->second;
}

std::string Origin::Locate(const std::string& path) const {
  std::string place = file;
  if (const int line = LineOf(path); line > 0) absl::StrAppend(&place, ":", line);
  if (!path.empty()) absl::StrAppend(&place, ": ", core::Shown(path));
  return place;
}

absl::Status FieldError(const Origin& origin, const std::string& path, std::string_view expected,
                        std::string_view got) {
  FieldCheck check(origin);
  check.Expect(false, path, expected, got);
  return check.status();
}

absl::Status FieldCheck::status() const {
  if (mistakes_.empty()) return absl::OkStatus();
  std::vector<Mistake> sorted = mistakes_;
  std::ranges::stable_sort(sorted, {}, &Mistake::line);
  std::string text;
  for (size_t i = 0; i < std::min(sorted.size(), kMostShown); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : "\n", sorted[i].text);
  }
  if (sorted.size() > kMostShown) absl::StrAppend(&text, "\nand ", sorted.size() - kMostShown, " more");
  return absl::InvalidArgumentError(text);
}

bool FieldCheck::HasMistakeAt(const std::string& path) const {
  return std::ranges::find(mistakes_, path, &Mistake::path) != mistakes_.end();
}

void FieldCheck::Add(const std::string& path, std::string text) {
  if (std::ranges::any_of(mistakes_, [&](const Mistake& one) { return Overlap(one.path, path); })) return;
  mistakes_.push_back(
      {origin_.LineOf(path), path, absl::StrCat(origin_.Locate(path), ": ", core::Clipped(text, kMostMistakeBytes))});
}

void FieldCheck::Expect(bool ok, const std::string& path, std::string_view expected, std::string_view got) {
  if (!ok) Add(path, absl::StrCat("expected ", std::string(expected), ", got ", std::string(got)));
}

void FieldCheck::Ok(const std::string& path, const absl::Status& status) {
  if (!status.ok()) Add(path, std::string(status.message()));
}

std::string RangeText(int64_t least, int64_t most, std::string_view reason) {
  std::string text = least == most ? absl::StrCat(least) : absl::StrCat(least, " to ", most);
  if (!reason.empty()) absl::StrAppend(&text, " (", std::string(reason), ")");
  return text;
}

int64_t FieldCheck::Integer(const std::string& path, int64_t value, int64_t least, int64_t most,
                            std::string_view reason) {
  if (value >= least && value <= most) return value;
  const bool by_default = !origin_.lines.empty() && !origin_.Has(path);
  const bool follows = by_default && !mistakes_.empty();  // from the key that was given and is wrong
  Expect(follows, path, RangeText(least, most, reason), absl::StrCat(value, by_default ? " by default" : ""));
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
