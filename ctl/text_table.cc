#include "ctl/text_table.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

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
