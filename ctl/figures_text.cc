#include "ctl/figures_text.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"

namespace causeway::ctl {

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

}  // namespace causeway::ctl
