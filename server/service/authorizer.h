// Who may say what: holds what a peer shows, its certificate and its token, against the name that it speaks in and the
// call that it makes (roles.h).
//
//   certificate's names ─┐
//   token's SHA-256 ─────┴► name, role ── of the call? of the claimed site? ──► OK, UNAUTHENTICATED, PERMISSION_DENIED
//
// With neither mutual TLS nor --site_tokens everybody is trusted: that is loopback, or a network that --insecure calls
// one's own. With both, the two must agree. A peer's fault is a Status that says what to do; the words name no secret.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/ids.h"
#include "core/mutex.h"
#include "server/service/peer.h"
#include "server/service/roles.h"
#include "server/service/watched_file.h"

namespace causeway::server {

struct Identity {
  std::string name;
  Role role = Role::kSite;

  friend bool operator==(const Identity&, const Identity&) = default;
};

// The lines `name role sha256` of --site_tokens, or `name sha256`: those of `operator` are an admin's, those of other
// names a site's. A name may stand in several lines, so that tokens can be exchanged one after the other; a token
// belongs to one name. Immutable.
class SiteTokens {
 public:
  // INVALID_ARGUMENT with "name:line" of what is wrong.
  static absl::StatusOr<SiteTokens> Parse(const std::string& text, const std::string& file_name);

  // Whose token it is. Looks at all lines, in a time that does not depend on the token.
  std::optional<Identity> Owner(const std::string& token) const;

 private:
  using Sha256 = std::array<uint8_t, 32>;
  std::vector<std::pair<Identity, Sha256>> lines_;
};

// The serials of certificates that are good no more: one in hexadecimal digits a line. INVALID_ARGUMENT with
// "name:line" of what is wrong.
absl::StatusOr<std::set<std::string>> ParseRevoked(const std::string& text, const std::string& file_name);

struct AuthorizerOptions {
  bool mutual_tls = false;
  std::string site_tokens;  // path; empty: tokens are not asked for
  std::string tls_revoked;  // path; empty: no certificate is
};

// Thread-safe. Reads its files again when they have changed; while a changed one is wrong, it logs that and keeps what
// it had.
class Authorizer {
 public:
  // INVALID_ARGUMENT if a file is missing or wrong.
  static absl::StatusOr<std::unique_ptr<Authorizer>> Create(AuthorizerOptions options);

  // Who it is; nothing where neither TLS nor tokens say.
  absl::StatusOr<std::optional<Identity>> Identify(const Peer& peer);

  absl::Status CheckSite(const Peer& peer, const core::SiteId& site);  // that it is this one
  absl::Status CheckCall(const Peer& peer, std::string_view call);     // that its role has this row of roles.h
  // By the headers alone: that some role may make its call, and it is in one that may. A command is let in in any role,
  // so that its refusal can say what was asked, and is recorded.
  absl::Status CheckArrival(const Peer& peer);

  uint64_t Revision();  // another one when what is in force has changed

 private:
  explicit Authorizer(AuthorizerOptions options)
      : options_(std::move(options)),
        tokens_file_("site_tokens", options_.site_tokens),
        revoked_file_("tls_revoked", options_.tls_revoked) {}
  bool everybody() const { return !options_.mutual_tls && !tokens_file_.given(); }
  absl::Status ReadTokens() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status ReadRevoked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReadAgain() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckRevoked(const Peer& peer);
  absl::StatusOr<Identity> TokenOwner(const Peer& peer);  // UNAUTHENTICATED: nobody's
  absl::StatusOr<Identity> CertificateOwner(const Peer& peer) const;
  absl::Status CheckCertificate(const Peer& peer, const std::string& claimed) const;

  const AuthorizerOptions options_;
  core::Mutex mutex_;
  WatchedFile tokens_file_, revoked_file_;
  SiteTokens tokens_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> revoked_ ABSL_GUARDED_BY(mutex_);
  uint64_t revision_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace causeway::server
