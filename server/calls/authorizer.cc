#include "server/calls/authorizer.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cctype>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/check.h"
#include "core/ids.h"
#include "core/text.h"

namespace causeway::server {
namespace {

constexpr size_t kSha256HexDigits = 2 * SHA256_DIGEST_LENGTH;
constexpr size_t kSerialHexDigits = 40;  // the longest that RFC 5280 allows

bool IsHex(const std::string& text) {
  return std::ranges::all_of(text, [](unsigned char c) { return std::isxdigit(c); });
}

// The words of a line, without the comment after '#'.
std::vector<std::string> WordsOf(const std::string& line) {
  return absl::StrSplit(line.substr(0, line.find('#')), absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
}

std::vector<std::string> LinesOf(const std::string& text) {
  return absl::StrSplit(std::string(core::WithoutByteOrderMark(text)), '\n');
}

std::string RoleText(const Identity& identity) {
  return absl::StrCat(identity.name, " has role ", std::string(RoleName(identity.role)));
}

// The identity from the words before the digest; the error message quotes only roles from the line, since it may hold a
// token.
absl::StatusOr<Identity> IdentityOf(const std::vector<std::string>& words) {
  const std::string& name = words[0];
  if (words.size() == 2) return Identity{name, name == "operator" ? Role::kAdmin : Role::kSite};
  if (IsReservedRole(words[1])) {
    return absl::InvalidArgumentError(absl::StrCat("role ", words[1], " is reserved: this version has no such role"));
  }
  const std::optional<Role> role = RoleOf(words[1]);
  if (!role)
    return absl::InvalidArgumentError("expected role site, shard, standby, watch, operate or admin, got another word");
  return Identity{name, *role};
}

}  // namespace

// ---- SiteTokens ----

absl::StatusOr<SiteTokens> SiteTokens::Parse(const std::string& text, const std::string& file_name) {
  SiteTokens tokens;
  int number = 0;
  for (const std::string& line : LinesOf(text)) {
    ++number;
    const auto wrong = [&](absl::string_view what) {
      return absl::InvalidArgumentError(absl::StrCat(file_name, ":", number, ": ", what));
    };
    const std::vector<std::string> words = WordsOf(line);
    if (words.empty()) continue;
    if (words.size() < 2 || words.size() > 3 || words.back().size() != kSha256HexDigits || !IsHex(words.back())) {
      return wrong(
          "expected `name sha256` or `name role sha256`, with the SHA-256 of the name's token in 64 "
          "hexadecimal digits");  // not the value given
    }
    const absl::StatusOr<Identity> identity = IdentityOf(words);
    if (!identity.ok()) return wrong(identity.status().message());
    if (!IsNameOf(identity->role, identity->name)) {
      return wrong(
          "expected a site's name before role site, shard:NAME before shard, standby:NAME before standby, and "
          "operator:NAME or operator "
          "before watch, operate and admin");
    }
    Sha256 sha{};
    const std::string bytes = absl::HexStringToBytes(words.back());
    std::copy(bytes.begin(), bytes.end(), sha.begin());
    for (const auto& [other, digest] : tokens.lines_) {
      if (digest == sha && other.name != identity->name) {
        return wrong(absl::StrCat(identity->name, " has the token of ", other.name, "; each needs its own"));
      }
      if (other.name == identity->name && other.role != identity->role) {
        return wrong(absl::StrCat("expected one role of a name, got another than before: ", RoleText(other)));
      }
    }
    tokens.lines_.emplace_back(*identity, sha);
  }
  if (tokens.lines_.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(file_name, ": expected lines `name role sha256`, got none"));
  }
  return tokens;
}

std::optional<Identity> SiteTokens::Owner(const std::string& token) const {
  Sha256 sha{};
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(), sha.data());
  const Identity* owner = nullptr;
  for (const auto& [identity, expected] : lines_) {
    if (CRYPTO_memcmp(expected.data(), sha.data(), sha.size()) == 0) owner = &identity;
  }
  return owner == nullptr ? std::nullopt : std::optional(*owner);
}

absl::StatusOr<std::set<std::string>> ParseRevoked(const std::string& text, const std::string& file_name) {
  std::set<std::string> serials;
  int number = 0;
  for (const std::string& line : LinesOf(text)) {
    ++number;
    const std::vector<std::string> words = WordsOf(line);
    if (words.empty()) continue;
    if (words.size() > 1 || words[0].size() > kSerialHexDigits || !IsHex(words[0])) {
      return absl::InvalidArgumentError(
          absl::StrCat(file_name, ":", number, ": expected a certificate's serial in up to ", kSerialHexDigits,
                       " hexadecimal digits, got '", absl::StrJoin(words, " ").substr(0, 2 * kSerialHexDigits), "'"));
    }
    serials.insert(NormalSerial(words[0]));
  }
  return serials;
}

// ---- Authorizer ----

absl::StatusOr<std::unique_ptr<Authorizer>> Authorizer::Create(AuthorizerOptions options) {
  std::unique_ptr<Authorizer> authorizer(new Authorizer(std::move(options)));
  if (authorizer->revoked_file_.given() && !authorizer->options_.mutual_tls) {
    return absl::InvalidArgumentError(
        absl::StrCat(authorizer->revoked_file_.Text(), ": expected --tls_ca, --tls_cert and --tls_key with it"));
  }
  core::MutexLock lock(authorizer->mutex_);
  RETURN_IF_ERROR(authorizer->Read());
  return authorizer;
}

template <typename T>
absl::Status Authorizer::Read(formats::WatchedFile& file,
                              absl::StatusOr<T> (*parse)(const std::string&, const std::string&), T& rules) {
  if (!file.given()) return absl::OkStatus();
  const absl::StatusOr<std::optional<std::string>> text = file.ReadIfChanged();
  if (text.ok() && !*text) return absl::OkStatus();
  absl::StatusOr<T> read = text.ok() ? parse(**text, file.Text()) : absl::StatusOr<T>(text.status());
  formats::NoteNamedFile(file.Text(), read.status());
  RETURN_IF_ERROR(read.status());
  rules = *std::move(read);
  ++revision_;
  return absl::OkStatus();
}

absl::Status Authorizer::Read() {
  absl::Status status = Read(tokens_file_, SiteTokens::Parse, tokens_);
  status.Update(Read(revoked_file_, ParseRevoked, revoked_));
  return status;
}

void Authorizer::ReadAgain() {
  std::string fault(Read().message());
  if (fault != std::exchange(told_, fault) && !fault.empty())
    spdlog::error("{}; what was read before stays in force", fault);
}

uint64_t Authorizer::Revision() {
  core::MutexLock lock(mutex_);
  ReadAgain();
  return revision_;
}

absl::Status Authorizer::CheckRevoked(const Peer& peer) {
  core::MutexLock lock(mutex_);
  ReadAgain();
  if (!revoked_.contains(peer.serial)) return absl::OkStatus();
  return absl::UnauthenticatedError(
      absl::StrCat("the certificate with serial ", peer.serial, " is revoked: ask for another one"));
}

absl::StatusOr<Identity> Authorizer::TokenOwner(const Peer& peer) {
  if (peer.token.empty()) {
    return absl::UnauthenticatedError("this coordinator asks for a token, none came: give --token_file");
  }
  core::MutexLock lock(mutex_);
  ReadAgain();
  std::optional<Identity> owner = tokens_.Owner(peer.token);
  if (owner) return *std::move(owner);
  return absl::UnauthenticatedError(
      "no name has this token: give the --token_file whose SHA-256 stands in the coordinator's --site_tokens");
}

// An operator's, a shard's or a standby's role is the certificate's organizational unit; that of `operator` alone may be left out.
absl::StatusOr<Identity> Authorizer::CertificateOwner(const Peer& peer) const {
  if (peer.names.empty()) return absl::UnauthenticatedError("the certificate has no name");
  const auto other = std::ranges::find_if(peer.names, [](const std::string& name) {
    return IsNameOf(Role::kAdmin, name) || IsNameOf(Role::kShard, name) || IsNameOf(Role::kStandby, name);
  });
  if (other == peer.names.end()) return Identity{peer.names.front(), Role::kSite};
  if (*other == "operator" && peer.unit.empty()) return Identity{*other, Role::kAdmin};
  const std::optional<Role> role = RoleOf(peer.unit);
  if (role && IsNameOf(*role, *other)) return Identity{*other, *role};
  return absl::PermissionDeniedError(
      absl::StrCat("the certificate of ", *other, " has no role: expected ",
                   IsNameOf(Role::kAdmin, *other) ? "watch, operate or admin" : other->substr(0, other->find(':')),
                   " as its organizational unit, got '", absl::CEscape(peer.unit), "'"));
}

absl::Status Authorizer::CheckCertificate(const Peer& peer, const std::string& claimed) const {
  if (std::ranges::count(peer.names, claimed) > 0) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("the certificate is that of ", absl::StrJoin(peer.names, ", "),
                                                  ", not of ", claimed, ": a peer may use only its own name"));
}

absl::StatusOr<std::optional<Identity>> Authorizer::Identify(const Peer& peer) {
  if (everybody()) return std::nullopt;
  RETURN_IF_ERROR(CheckRevoked(peer));
  if (!tokens_file_.given()) return CertificateOwner(peer);
  ASSIGN_OR_RETURN(Identity owner, TokenOwner(peer));
  if (options_.mutual_tls) RETURN_IF_ERROR(CheckCertificate(peer, owner.name));
  return owner;
}

absl::Status Authorizer::CheckSite(const Peer& peer, const core::SiteId& site) {
  if (IsNameOf(Role::kAdmin, site) || IsNameOf(Role::kShard, site)) {
    return absl::PermissionDeniedError(absl::StrCat("expected the name of a site, got '", site,
                                                    "', which is reserved for operators, shards and standbys"));
  }
  if (everybody()) return absl::OkStatus();
  RETURN_IF_ERROR(CheckRevoked(peer));
  if (tokens_file_.given()) {
    ASSIGN_OR_RETURN(const Identity owner, TokenOwner(peer));
    if (owner.name != site) {
      return absl::PermissionDeniedError(
          absl::StrCat("the token is that of ", owner.name, ", not of ", site, ": a peer may use only its own name"));
    }
  }
  return options_.mutual_tls ? CheckCertificate(peer, site) : absl::OkStatus();
}

absl::Status Authorizer::CheckCall(const Peer& peer, std::string_view call) {
  if (everybody()) return absl::OkStatus();
  const CallRow* const row = RowOf(call);
  if (row == nullptr) {
    return absl::PermissionDeniedError(absl::StrCat(std::string(call), ": no role may make this call"));
  }
  ASSIGN_OR_RETURN(const std::optional<Identity> identity, Identify(peer));
  if (!identity || row->Allows(identity->role)) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(std::string(row->command.empty() ? row->call : row->command),
                                                  " takes role ", RolesOf(*row), ", and ", RoleText(*identity)));
}

absl::Status Authorizer::CheckArrival(const Peer& peer) {
  const CallRow* const row = RowOf(peer.call);
  const bool asked_later = row == nullptr ? HasRow(peer.call) : !row->command.empty();
  return asked_later ? Identify(peer).status() : CheckCall(peer, peer.call);
}

namespace {

constexpr uint32_t Bit(Role role) { return 1u << static_cast<uint32_t>(role); }

constexpr uint32_t kAdmin = Bit(Role::kAdmin);
constexpr uint32_t kOperate = Bit(Role::kOperate) | kAdmin;
constexpr uint32_t kWatch = Bit(Role::kWatch) | kOperate;
constexpr uint32_t kSite = Bit(Role::kSite);
constexpr uint32_t kStandby = Bit(Role::kStandby) | kAdmin;
constexpr uint32_t kShard = Bit(Role::kShard) | kAdmin;  // older shards had the operator's identity

constexpr CallRow kCalls[] = {
    {"Describe", "", kSite | kWatch | Bit(Role::kShard) | Bit(Role::kStandby)},
    {"GetStatus", "", kSite | kWatch},
    {"GetHistory", "", kSite | kWatch},
    {"Download", "", kSite | kWatch},
    {"Control", "", kSite},
    {"Upload", "", kSite},
    {"Show", "", kSite},
    {"KeepFile", "", kSite},
    {"GetFile", "", kSite | kWatch},
    {"Follow", "", kShard | kStandby},  // a standby of a shard has one identity, for both
    {"Replicate", "", kShard | kStandby},
    {"DrainSite", "drain", kOperate},
    {"ChangeRun PAUSE", "pause", kOperate},
    {"ChangeRun RESUME", "resume", kOperate},
    {"ChangeRun STOP", "stop", kAdmin},
    {"ChangeSettings", "set", kAdmin},
    {"ReleaseSite", "release", kAdmin},
    {"Rollback", "rollback", kAdmin},
    {"Promote", "promote", kAdmin},
    {"ForgetStandby", "standby", kAdmin},
};

std::string_view AfterPrefix(std::string_view name, std::string_view prefix) {
  return name.starts_with(prefix) ? name.substr(prefix.size()) : std::string_view();
}

}  // namespace

std::string_view RoleName(Role role) {
  switch (role) {
    case Role::kSite: return "site";
    case Role::kShard: return "shard";
    case Role::kStandby: return "standby";
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

bool IsReservedRole(std::string_view name) { return name == "relay"; }

bool IsNameOf(Role role, std::string_view name) {
  switch (role) {
    case Role::kSite: return name != "operator" && core::IsValidName(std::string(name));
    case Role::kShard: return core::IsValidName(std::string(AfterPrefix(name, "shard:")));
    case Role::kStandby: return core::IsValidName(std::string(AfterPrefix(name, "standby:")));
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
