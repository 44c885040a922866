#include "server/service/authorizer.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/check.h"
#include "core/limits.h"

namespace causeway::server {
namespace {

constexpr size_t kSha256HexDigits = 2 * SHA256_DIGEST_LENGTH;
constexpr int64_t kNsPerS = 1'000'000'000;

bool IsSha256Hex(const std::string& text) {
  return text.size() == kSha256HexDigits && std::ranges::all_of(text, [](unsigned char c) { return std::isxdigit(c); });
}

}  // namespace

std::string Peer::Name() const { return names.empty() ? address.substr(0, address.rfind(':')) : names.front(); }

// ---- SiteTokens ----

absl::StatusOr<SiteTokens> SiteTokens::Parse(const std::string& text, const std::string& file_name) {
  SiteTokens tokens;
  int number = 0;
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  for (const std::string& line : lines) {
    ++number;
    const auto wrong = [&](const std::string& what) {
      return absl::InvalidArgumentError(absl::StrCat(file_name, ":", number, ": ", what));
    };
    const std::string content = line.substr(0, line.find('#'));
    const std::vector<std::string> words = absl::StrSplit(content, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
    if (words.empty()) continue;
    if (words.size() != 2 || !core::IsValidName(words[0]) || !IsSha256Hex(words[1])) {
      return wrong("expected a site's name and the SHA-256 of its token in 64 hexadecimal digits");  // not what came
    }
    Sha256 sha{};
    const std::string bytes = absl::HexStringToBytes(words[1]);
    std::copy(bytes.begin(), bytes.end(), sha.begin());
    for (const auto& [site, other] : tokens.lines_) {
      if (other == sha && site != words[0]) {
        return wrong(absl::StrCat("site ", words[0], " has the token of site ", site, "; each needs its own"));
      }
    }
    tokens.lines_.emplace_back(words[0], sha);
  }
  if (tokens.lines_.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(file_name, ": expected lines `site sha256`, got none"));
  }
  return tokens;
}

std::string SiteTokens::Owner(const std::string& token) const {
  Sha256 sha{};
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(), sha.data());
  std::string owner;
  for (const auto& [site, expected] : lines_) {
    if (CRYPTO_memcmp(expected.data(), sha.data(), sha.size()) == 0) owner = site;
  }
  return owner;
}

// ---- Authorizer ----

absl::StatusOr<std::unique_ptr<Authorizer>> Authorizer::Create(AuthorizerOptions options) {
  std::unique_ptr<Authorizer> authorizer(new Authorizer(std::move(options)));
  if (!authorizer->options_.site_tokens.empty()) {
    core::MutexLock lock(authorizer->mutex_);
    RETURN_IF_ERROR(authorizer->ReadTokens());
  }
  return authorizer;
}

absl::StatusOr<Authorizer::FileStamp> Authorizer::Stamp(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("--site_tokens=", path, ": ", std::strerror(errno)));
  }
  return FileStamp{status.st_mtim.tv_sec * kNsPerS + status.st_mtim.tv_nsec, status.st_size, status.st_ino};
}

// The stamp is taken first: a file that changes meanwhile is read again.
absl::Status Authorizer::ReadTokens() {
  const std::string& path = options_.site_tokens;
  const absl::StatusOr<FileStamp> stamp = Stamp(path);
  if (stamp.ok() && *stamp == stamp_) return absl::OkStatus();
  stamp_ = stamp.value_or(FileStamp{});  // what is wrong is reported once
  if (!stamp.ok()) return stamp.status();
  if (stamp->bytes > static_cast<int64_t>(core::kMaxCredentialFileBytes)) {
    return absl::InvalidArgumentError(absl::StrCat("--site_tokens=", path, ": expected at most ",
                                                   core::kMaxCredentialFileBytes, " bytes, got ", stamp->bytes));
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::InvalidArgumentError(absl::StrCat("--site_tokens=", path, ": ", std::strerror(errno)));
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  ASSIGN_OR_RETURN(tokens_, SiteTokens::Parse(text, absl::StrCat("--site_tokens=", path)));
  ++revision_;
  return absl::OkStatus();
}

void Authorizer::ReadTokensAgain() {
  const FileStamp before = stamp_;
  if (const absl::Status status = ReadTokens(); !status.ok() && stamp_ != before) {
    spdlog::error("{}; the tokens that were read before stay in force", std::string(status.message()));
  }
}

uint64_t Authorizer::TokensRevision() {
  core::MutexLock lock(mutex_);
  if (!options_.site_tokens.empty()) ReadTokensAgain();
  return revision_;
}

absl::StatusOr<std::string> Authorizer::TokenOwner(const Peer& peer) {
  if (options_.site_tokens.empty()) return std::string();
  core::MutexLock lock(mutex_);
  ReadTokensAgain();
  if (peer.token.empty()) {
    return absl::UnauthenticatedError("this coordinator asks for a token, none came: give --token_file");
  }
  std::string owner = tokens_.Owner(peer.token);
  if (owner.empty()) {
    return absl::UnauthenticatedError(
        "the token is nobody's: give the --token_file whose SHA-256 stands in the coordinator's --site_tokens");
  }
  return owner;
}

absl::Status Authorizer::Check(const Peer& peer, const std::string& claimed) {
  ASSIGN_OR_RETURN(const std::string owner, TokenOwner(peer));
  if (!options_.site_tokens.empty() && owner != claimed) {
    return absl::PermissionDeniedError(
        absl::StrCat("the token is that of ", owner, ", not of ", claimed, ": nobody speaks for another"));
  }
  if (options_.mutual_tls && std::ranges::count(peer.names, claimed) == 0) {
    return absl::PermissionDeniedError(absl::StrCat("the certificate is that of ", absl::StrJoin(peer.names, ", "),
                                                    ", not of ", claimed, ": nobody speaks for another"));
  }
  return absl::OkStatus();
}

absl::Status Authorizer::CheckSite(const Peer& peer, const core::SiteId& site) {
  if (site == kOperator) {
    return absl::PermissionDeniedError(
        absl::StrCat("'", kOperator, "' is the name of who runs the coordinator; a site needs another"));
  }
  return Check(peer, site);
}

absl::Status Authorizer::CheckOperator(const Peer& peer) {
  if (options_.site_tokens.empty() && !options_.mutual_tls) return absl::OkStatus();
  const absl::Status status = Check(peer, kOperator);
  if (!absl::IsPermissionDenied(status)) return status;
  return absl::PermissionDeniedError(absl::StrCat("this takes the operator's identity: ", status.message()));
}

absl::Status Authorizer::CheckAnyone(const Peer& peer) {
  if (options_.site_tokens.empty()) {
    if (!options_.mutual_tls || !peer.names.empty()) return absl::OkStatus();
    return absl::UnauthenticatedError("the certificate has no name");
  }
  ASSIGN_OR_RETURN(const std::string owner, TokenOwner(peer));
  return Check(peer, owner);
}

}  // namespace causeway::server
