// The calls that each role may make: one row per call, one column per role. docs/security.md prints the table, and
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

// Roles reserved for the future: refused until then, so that no name changes its meaning.
bool IsReservedRole(std::string_view name);

// "a" is a site's name; "operator" and "operator:NAME" are names of operators, "shard:NAME" of another shard.
bool IsNameOf(Role role, std::string_view name);

struct CallRow {
  std::string_view call;     // its name in coordinator.proto, plus the request where rights depend on it
  std::string_view command;  // its causewayctl command, for calls that change the run and are recorded (commands.h)
  uint32_t roles = 0;        // bit r is set if the role of value r may make the call

  bool Allows(Role role) const { return (roles >> static_cast<uint32_t>(role) & 1) != 0; }
};

std::span<const CallRow> CallTable();
const CallRow* RowOf(std::string_view call);  // nullptr: none

// Whether `call` is the call of some row, or a prefix of one.
bool HasRow(std::string_view call);

std::string RolesOf(const CallRow& row);  // "operate or admin"

// The table as printed in docs/security.md.
std::string CallTableText();

}  // namespace causeway::server
