// Who may call what: one row for each call, one column for each role. docs/security.md prints the table, and
// roles_test.cc makes every call in every role. A call without a row is refused.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace causeway::server {

enum class Role { kSite, kShard, kWatch, kOperate, kAdmin };

inline constexpr std::array kRoles = {Role::kSite, Role::kShard, Role::kWatch, Role::kOperate, Role::kAdmin};

std::string_view RoleName(Role role);  // "site", "shard", "watch", "operate", "admin"
std::optional<Role> RoleOf(std::string_view name);

// Roles that files may name one day: refused until then, so that no name means two things.
bool IsReservedRole(std::string_view name);

// "a" is a site's name; "operator" and "operator:NAME" are operators', "shard:NAME" is another shard's.
bool IsNameOf(Role role, std::string_view name);

struct CallRow {
  std::string_view call;     // its name in coordinator.proto; where rights depend on the request: that, too
  std::string_view command;  // of causewayctl, for calls that change the run: these are recorded (commands.h)
  uint32_t roles = 0;        // bits

  bool Allows(Role role) const { return (roles >> static_cast<uint32_t>(role) & 1) != 0; }
};

std::span<const CallRow> CallTable();
const CallRow* RowOf(std::string_view call);  // nullptr: there is none

// Whether `call` is that of some row, or begins the calls of some.
bool HasRow(std::string_view call);

std::string RolesOf(const CallRow& row);  // "operate or admin"

// As docs/security.md has it.
std::string CallTableText();

}  // namespace causeway::server
