#include "ctl/figures_text.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"

namespace causeway::ctl {
namespace {

constexpr size_t kGap = 2;
constexpr size_t kLeastRest = 8;

bool Begins(char byte) { return (byte & 0xC0) != 0x80; }

std::string CutToColumns(const std::string& text, size_t columns) {
  if (ColumnsOf(text) <= columns) return text;
  std::string cut;
  size_t taken = 0;
  for (const char byte : text) {
    if (Begins(byte) && ++taken == columns) break;
    cut += byte;
  }
  return cut + "…";
}

}  // namespace

std::string NumberText(const nlohmann::json& value, const char* unit) {
  return value.is_number() ? absl::StrFormat("%.4g%s", value.get<double>(), unit) : "-";
}

std::string MillionsText(const nlohmann::json& value) {
  return value.is_number() ? absl::StrFormat("%.4g M", value.get<double>() / 1e6) : "-";
}

std::string BytesText(const nlohmann::json& value) {
  if (!value.is_number()) return "-";
  double bytes = value.get<double>();
  for (const char* unit : {"B", "kB", "MB", "GB"}) {
    if (bytes < 1000) return absl::StrFormat("%.3g %s", bytes, unit);
    bytes /= 1000;
  }
  return absl::StrFormat("%.3g TB", bytes);
}

std::string GroupedText(int64_t number) {
  std::string text = absl::StrCat(number);
  for (auto i = std::ssize(text) - 3; i > (number < 0 ? 1 : 0); i -= 3) text.insert(static_cast<size_t>(i), ",");
  return text;
}

std::string StateText(const nlohmann::json& site) {
  return site.value("finished", false) ? "finished" : site.at("state").get<std::string>();
}

std::string PercentText(const nlohmann::json& share) {
  return share.is_number() ? absl::StrFormat("%.1f%%", 100 * share.get<double>()) : "-";
}

std::string SubjectText(const v1::HistoryEvent& event) {
  if (!event.site().empty()) return event.site();
  return event.fragment() >= 0 ? absl::StrCat("fragment ", event.fragment()) : "";
}

std::string HistoryText(const v1::HistoryEvent& event) {
  const std::string time =
      absl::FormatTime("%Y-%m-%d %H:%M:%E3SZ", absl::FromUnixMillis(event.unix_ms()), absl::UTCTimeZone());
  return absl::StrFormat("%s  %-8s %-16s %s", time, event.kind(), SubjectText(event), event.text());
}

std::string HistoryJson(const v1::HistoryEvent& event) {
  nlohmann::ordered_json json = {{"id", event.id()},     {"unix_ms", event.unix_ms()}, {"kind", event.kind()},
                                 {"site", event.site()}, {"fragment", nullptr},        {"text", event.text()}};
  if (event.site().empty()) json["site"] = nullptr;
  if (event.fragment() >= 0) json["fragment"] = event.fragment();
  if (event.has_command()) {
    const v1::CommandRecord& command = event.command();
    json["command"] = {{"name", command.name()},           {"role", command.role()},
                       {"address", command.address()},     {"command", command.command()},
                       {"arguments", command.arguments()}, {"result", command.result()}};
  }
  return json.dump();
}

size_t ColumnsOf(const std::string& text) { return static_cast<size_t>(std::ranges::count_if(text, Begins)); }

std::string Wrapped(const std::string& text, size_t width, const std::string& indent) {
  std::string lines, line;
  const std::vector<std::string> words = absl::StrSplit(text, ' ');
  for (const std::string& word : words) {
    if (width > 0 && !line.empty() && ColumnsOf(line) + 1 + ColumnsOf(word) > width) {
      absl::StrAppend(&lines, line, "\n");
      line = absl::StrCat(indent, word);
    } else {
      absl::StrAppend(&line, line.empty() ? "" : " ", word);
    }
    while (width > 0 && ColumnsOf(line) > width) {  // a word of its own
      absl::StrAppend(&lines, CutToColumns(line, width), "\n");
      line.clear();
    }
  }
  return line.empty() ? lines : absl::StrCat(lines, line, "\n");
}

std::string TextTable(const std::vector<TextColumn>& columns, const std::vector<std::vector<std::string>>& rows,
                      size_t width) {
  std::vector<size_t> wide(columns.size());
  std::vector<bool> shown(columns.size(), true);
  for (size_t c = 0; c < columns.size(); ++c) {
    wide[c] = columns[c].rest ? kLeastRest : ColumnsOf(columns[c].title);
    for (const auto& row : rows) {
      if (!columns[c].rest) wide[c] = std::max(wide[c], ColumnsOf(row[c]));
    }
  }
  const auto taken = [&] {
    size_t sum = 0;
    for (size_t c = 0; c < columns.size(); ++c) sum += shown[c] ? wide[c] + (sum > 0 ? kGap : 0) : 0;
    return sum;
  };
  while (width > 0 && taken() > width) {
    size_t least = columns.size();
    for (size_t c = 0; c < columns.size(); ++c) {
      if (shown[c] && columns[c].rank > 0 && (least == columns.size() || columns[c].rank > columns[least].rank))
        least = c;
    }
    if (least == columns.size()) break;
    shown[least] = false;
  }
  const size_t rest = width > taken() ? width - taken() + kLeastRest : kLeastRest;
  std::vector<std::vector<std::string>> lines;
  std::vector<std::string>& titles = lines.emplace_back();
  for (const TextColumn& column : columns) titles.push_back(column.title);
  lines.insert(lines.end(), rows.begin(), rows.end());
  std::string text;
  for (const auto& cells : lines) {
    std::string line;
    for (size_t c = 0; c < columns.size(); ++c) {
      if (!shown[c]) continue;
      if (!line.empty()) line.append(kGap, ' ');
      const std::string cell = columns[c].rest && width > 0 ? CutToColumns(cells[c], rest) : cells[c];
      const size_t blank = columns[c].rest ? 0 : wide[c] - ColumnsOf(cell);
      if (!columns[c].left) line.append(blank, ' ');
      line += cell;
      if (columns[c].left) line.append(blank, ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    if (width > 0) line = CutToColumns(line, width);
    absl::StrAppend(&text, line, "\n");
  }
  return text;
}

}  // namespace causeway::ctl
