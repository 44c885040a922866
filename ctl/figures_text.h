// Formats the figures of a status for people: four digits, powers of 1000, "-" for an unknown figure.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

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

}  // namespace causeway::ctl
