#include "server/calls/roles.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/ids.h"

namespace causeway::server {
namespace {

constexpr uint32_t Bit(Role role) { return 1u << static_cast<uint32_t>(role); }

constexpr uint32_t kAdmin = Bit(Role::kAdmin);
constexpr uint32_t kOperate = Bit(Role::kOperate) | kAdmin;
constexpr uint32_t kWatch = Bit(Role::kWatch) | kOperate;
constexpr uint32_t kSite = Bit(Role::kSite);
constexpr uint32_t kShard = Bit(Role::kShard) | kAdmin;  // older shards had the operator's identity

constexpr CallRow kCalls[] = {
    {"Describe", "", kSite | kWatch},
    {"GetStatus", "", kSite | kWatch},
    {"GetHistory", "", kSite | kWatch},
    {"Download", "", kSite | kWatch},
    {"Control", "", kSite},
    {"Upload", "", kSite},
    {"Show", "", kSite},
    {"KeepFile", "", kSite},
    {"GetFile", "", kSite | kWatch},
    {"Follow", "", kShard},
    {"DrainSite", "drain", kOperate},
    {"ChangeRun PAUSE", "pause", kOperate},
    {"ChangeRun RESUME", "resume", kOperate},
    {"ChangeRun STOP", "stop", kAdmin},
    {"ChangeSettings", "set", kAdmin},
    {"ReleaseSite", "release", kAdmin},
    {"Rollback", "rollback", kAdmin},
};

std::string_view AfterPrefix(std::string_view name, std::string_view prefix) {
  return name.starts_with(prefix) ? name.substr(prefix.size()) : std::string_view();
}

}  // namespace

std::string_view RoleName(Role role) {
  switch (role) {
    case Role::kSite: return "site";
    case Role::kShard: return "shard";
    case Role::kWatch: return "watch";
    case Role::kOperate: return "operate";
    case Role::kAdmin: return "admin";
  }
  return "";
}

std::optional<Role> RoleOf(std::string_view name) {
  const auto found = std::ranges::find(kRoles, name, RoleName);
  return found == kRoles.end() ? std::nullopt : std::optional(*found);
}

bool IsReservedRole(std::string_view name) { return name == "standby" || name == "relay"; }

bool IsNameOf(Role role, std::string_view name) {
  switch (role) {
    case Role::kSite: return name != "operator" && core::IsValidName(std::string(name));
    case Role::kShard: return core::IsValidName(std::string(AfterPrefix(name, "shard:")));
    default: return name == "operator" || core::IsValidName(std::string(AfterPrefix(name, "operator:")));
  }
}

std::span<const CallRow> CallTable() { return kCalls; }

const CallRow* RowOf(std::string_view call) {
  const auto found = std::ranges::find(kCalls, call, &CallRow::call);
  return found == std::end(kCalls) ? nullptr : &*found;
}

bool HasRow(std::string_view call) {
  return std::ranges::any_of(kCalls, [call](const CallRow& row) {
    return row.call == call || (row.call.starts_with(call) && row.call.substr(call.size()).starts_with(' '));
  });
}

std::string RolesOf(const CallRow& row) {
  std::vector<std::string> names;
  for (const Role role : kRoles) {
    if (row.Allows(role)) names.emplace_back(RoleName(role));
  }
  return absl::StrJoin(names, " or ");
}

std::string CallTableText() {
  std::string text = "| call |", line = "|---|";
  for (const Role role : kRoles) {
    absl::StrAppend(&text, " ", std::string(RoleName(role)), " |");
    line += "---|";
  }
  absl::StrAppend(&text, "\n", line, "\n");
  for (const CallRow& row : kCalls) {
    absl::StrAppend(&text, "| ", std::string(row.call));
    if (!row.command.empty()) absl::StrAppend(&text, " (`causewayctl ", std::string(row.command), "`)");
    text += " |";
    for (const Role role : kRoles) text += row.Allows(role) ? " yes |" : " |";
    text += "\n";
  }
  return text;
}

}  // namespace causeway::server
