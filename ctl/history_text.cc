#include "ctl/history_text.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"

namespace causeway::ctl {

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
