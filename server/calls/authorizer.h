// Authorizes calls: checks a peer's certificate and token against the name that it claims and the call that it makes
// (CallTable).
//
//   certificate's names ─┐
//   token's SHA-256 ─────┴► name, role ── of the call? of the claimed site? ──► OK, UNAUTHENTICATED, PERMISSION_DENIED
//
// With neither mutual TLS nor --site_tokens every peer is trusted: that is for loopback, or for a network that
// --insecure declares to be private. With both, the two must agree. A peer's error is a Status that says what to do;
// the message names no secret.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/ids.h"
#include "core/mutex.h"
#include "formats/named_file.h"
#include "server/calls/peer.h"

namespace causeway::server {

// The calls that each role may make: one row per call, one column per role. docs/security.md prints the table, and
// roles_test.cc makes every call in every role. A call without a row is refused.
enum class Role { kSite, kShard, kStandby, kWatch, kOperate, kAdmin };

inline constexpr std::array kRoles = {Role::kSite,  Role::kShard,   Role::kStandby,
                                      Role::kWatch, Role::kOperate, Role::kAdmin};

std::string_view RoleName(Role role);  // "site", "shard", "standby", "watch", "operate", "admin"
std::optional<Role> RoleOf(std::string_view name);

// Roles reserved for the future: refused until then, so that no name changes its meaning.
bool IsReservedRole(std::string_view name);

// "a" is a site's name; "operator" and "operator:NAME" are names of operators, "shard:NAME" of another shard,
// "standby:NAME" of a standby.
bool IsNameOf(Role role, std::string_view name);

struct CallRow {
  std::string_view call;     // its name in coordinator.proto, plus the request where rights depend on it
  std::string_view command;  // its causewayctl command, for calls that change the run and are recorded
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

struct Identity {
  std::string name;
  Role role = Role::kSite;

  friend bool operator==(const Identity&, const Identity&) = default;
};

// The lines `name role sha256` of --site_tokens, or `name sha256`: then `operator` has the role admin, and every other
// name the role site. A name may have several lines, so that tokens can be replaced one at a time; a token belongs to
// one name. Immutable.
class SiteTokens {
 public:
  // INVALID_ARGUMENT with the "name:line" of the error.
  static absl::StatusOr<SiteTokens> Parse(const std::string& text, const std::string& file_name);

  // The owner of a token. Looks at all lines, in a time that does not depend on the token.
  std::optional<Identity> Owner(const std::string& token) const;

 private:
  using Sha256 = std::array<uint8_t, 32>;
  std::vector<std::pair<Identity, Sha256>> lines_;
};

// The serials of revoked certificates: one per line, in hexadecimal digits. INVALID_ARGUMENT with the "name:line" of
// the error.
absl::StatusOr<std::set<std::string>> ParseRevoked(const std::string& text, const std::string& file_name);

struct AuthorizerOptions {
  bool mutual_tls = false;
  std::string site_tokens;  // path; empty: no token is required
  std::string tls_revoked;  // path; empty: no certificate is revoked
};

// Thread-safe. Rereads its files when they have changed; while a changed file is invalid, it logs that and keeps the
// previous contents.
class Authorizer {
 public:
  // INVALID_ARGUMENT if a file is missing or wrong.
  static absl::StatusOr<std::unique_ptr<Authorizer>> Create(AuthorizerOptions options);

  // The peer's identity; nullopt where neither TLS nor tokens establish it.
  absl::StatusOr<std::optional<Identity>> Identify(const Peer& peer);

  absl::Status CheckSite(const Peer& peer, const core::SiteId& site);  // the peer is this site
  absl::Status CheckCall(const Peer& peer, std::string_view call);     // its role allows this row of the table
  // Judged by the headers alone: some role may make this call, and the peer has such a role. A command is let in for
  // any role, so that its refusal can name the request, and is recorded.
  absl::Status CheckArrival(const Peer& peer);

  uint64_t Revision();  // changes whenever the rules in force do

 private:
  explicit Authorizer(AuthorizerOptions options)
      : options_(std::move(options)),
        tokens_file_("site_tokens", options_.site_tokens),
        revoked_file_("tls_revoked", options_.tls_revoked) {}
  bool everybody() const { return !options_.mutual_tls && !tokens_file_.given(); }
  absl::Status Read() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);  // rereads changed files; the first error
  template <typename T>
  absl::Status Read(formats::WatchedFile& file, absl::StatusOr<T> (*parse)(const std::string&, const std::string&),
                    T& rules) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReadAgain() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckRevoked(const Peer& peer);
  absl::StatusOr<Identity> TokenOwner(const Peer& peer);  // UNAUTHENTICATED: no site has this token
  absl::StatusOr<Identity> CertificateOwner(const Peer& peer) const;
  absl::Status CheckCertificate(const Peer& peer, const std::string& claimed) const;

  const AuthorizerOptions options_;
  core::Mutex mutex_;
  formats::WatchedFile tokens_file_, revoked_file_;
  SiteTokens tokens_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> revoked_ ABSL_GUARDED_BY(mutex_);
  uint64_t revision_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string told_ ABSL_GUARDED_BY(mutex_);  // the fault that was logged last
};

}  // namespace causeway::server
