// Texts for people: a status's figures (four digits, powers of 1000, "-" for an unknown one), events, tables.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "causeway/v1/coordinator.pb.h"

namespace causeway::ctl {

// "1.633", with `unit` behind it.
std::string NumberText(const nlohmann::json& value, const char* unit = "");

// "0.8244 M"
std::string MillionsText(const nlohmann::json& value);

// "12.2 MB": 1 kB is 1000 bytes.
std::string BytesText(const nlohmann::json& bytes);

// "4,340,736"
std::string GroupedText(int64_t number);

// The state of a site: "training", …; "finished" where it has left with all steps done.
std::string StateText(const nlohmann::json& site);

// "91.7%"
std::string PercentText(const nlohmann::json& share);

// Lines of `causewayctl history`, and the words of an event for the report.

// The site that an event concerns, or "fragment 3"; empty: neither.
std::string SubjectText(const v1::HistoryEvent& event);

// "2026-11-21 19:06:52.123  enter  eu  after step 40": time in UTC, kind, site or fragment, words.
std::string HistoryText(const v1::HistoryEvent& event);

// {"id", "unix_ms", "kind", "site", "fragment", "text"}, on one line; a site or fragment that the event lacks is null.
// A command has {"name", "role", "address", "command", "arguments", "result"} as "command", too.
std::string HistoryJson(const v1::HistoryEvent& event);

// Tables for a terminal of any width from 40 columns on: columns that do not fit are left out, least important first.
struct TextColumn {
  std::string title;
  int rank = 0;       // columns of the greatest rank are left out first; 0: never left out
  bool left = false;  // its cells begin at the left
  bool rest = false;  // the last column: takes what is left of the line, and is cut
};

// Title and rows, each ending with a line break. `width`: the terminal's; 0: everything fits.
std::string TextTable(const std::vector<TextColumn>& columns, const std::vector<std::vector<std::string>>& rows,
                      size_t width);

// Lines of at most `width` columns, broken at blanks, those after the first with the indent; 0: one line.
std::string Wrapped(const std::string& text, size_t width, const std::string& indent = "  ");

size_t ColumnsOf(const std::string& text);  // display columns

}  // namespace causeway::ctl
