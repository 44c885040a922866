// Tables for a terminal of any width from 40 columns on: columns that do not fit are left out, least important first.
#pragma once

#include <string>
#include <vector>

namespace causeway::ctl {

struct TextColumn {
  std::string title;
  int rank = 0;       // columns of the greatest rank go first; 0: stays
  bool left = false;  // its cells begin at the left
  bool rest = false;  // the last column: takes what is left of the line, and is cut
};

// Title and rows, each ending with a line break. `width`: of the terminal; 0: everything fits.
std::string TextTable(const std::vector<TextColumn>& columns, const std::vector<std::vector<std::string>>& rows,
                      size_t width);

// Lines of at most `width` columns, broken at blanks, those after the first with the indent; 0: one line.
std::string Wrapped(const std::string& text, size_t width, const std::string& indent = "  ");

size_t ColumnsOf(const std::string& text);  // display columns

}  // namespace causeway::ctl
