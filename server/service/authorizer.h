// Who may say what: holds what a peer shows, its certificate and its token, against the name that it speaks in.
//
//   certificate's names ─┐
//   token's SHA-256 ─────┴► the sites that the peer may be ── claimed? ──► OK, UNAUTHENTICATED, PERMISSION_DENIED
//
// With neither mutual TLS nor --site_tokens everybody is trusted: that is loopback, or a network that --insecure calls
// one's own. With both, the two must agree. A peer's fault is a Status that says what to do; the words name no secret.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/ids.h"
#include "core/mutex.h"

namespace causeway::server {

// What causewayctl shows to pause, resume, stop or drain. No site may have the name.
inline constexpr char kOperator[] = "operator";

// A peer as its connection and its headers show it.
struct Peer {
  std::vector<std::string> names;  // of its certificate: common name and DNS names; empty without TLS
  std::string token;               // empty: none came
  std::string address;             // for the log

  std::string Name() const;  // of its certificate, or else its host
};

// The lines `site sha256hex` of --site_tokens. A name may stand in several lines, so that tokens can be exchanged one
// after the other; a token belongs to one name. Immutable.
class SiteTokens {
 public:
  // INVALID_ARGUMENT with "name:line" of what is wrong.
  static absl::StatusOr<SiteTokens> Parse(const std::string& text, const std::string& file_name);

  // Whose token it is; "" if nobody's. Looks at all lines, in a time that does not depend on the token.
  std::string Owner(const std::string& token) const;

 private:
  using Sha256 = std::array<uint8_t, 32>;
  std::vector<std::pair<std::string, Sha256>> lines_;
};

struct AuthorizerOptions {
  bool mutual_tls = false;
  std::string site_tokens;  // path; empty: tokens are not asked for
};

// Thread-safe. Reads the file of tokens again when it has changed; while a changed one is wrong, it logs that and keeps
// what it had.
class Authorizer {
 public:
  // INVALID_ARGUMENT if the file of tokens is missing or wrong.
  static absl::StatusOr<std::unique_ptr<Authorizer>> Create(AuthorizerOptions options);

  absl::Status CheckSite(const Peer& peer, const core::SiteId& site);
  absl::Status CheckOperator(const Peer& peer);
  absl::Status CheckAnyone(const Peer& peer);  // a site or the operator, no matter which

  // Another one when the tokens in force have changed.
  uint64_t TokensRevision();

 private:
  // What stat says of a file; another one stands where it differs.
  struct FileStamp {
    int64_t modified_ns = 0;
    int64_t bytes = -1;
    uint64_t inode = 0;
    friend bool operator==(const FileStamp&, const FileStamp&) = default;
  };

  explicit Authorizer(AuthorizerOptions options) : options_(std::move(options)) {}
  static absl::StatusOr<FileStamp> Stamp(const std::string& path);
  void ReadTokensAgain() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status ReadTokens() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whose token it is; UNAUTHENTICATED if nobody's. "" where tokens are not asked for.
  absl::StatusOr<std::string> TokenOwner(const Peer& peer);
  absl::Status Check(const Peer& peer, const std::string& claimed);

  const AuthorizerOptions options_;
  core::Mutex mutex_;
  FileStamp stamp_ ABSL_GUARDED_BY(mutex_);
  SiteTokens tokens_ ABSL_GUARDED_BY(mutex_);
  uint64_t revision_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace causeway::server
