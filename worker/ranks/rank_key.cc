#include "worker/ranks/rank_key.h"

#include <array>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "core/address.h"
#include "core/check.h"
#include "core/keyed_proof.h"
#include "core/random.h"
#include "formats/named_file.h"

namespace causeway::worker {
namespace {

constexpr size_t kLeastCharacters = 16, kMostCharacters = 4096;

bool OthersReach(const RankPlace& place) {
  if (place.world == 1 || place.rendezvous.starts_with("unix:")) return false;
  const absl::StatusOr<core::Address> address = core::ParseAddress("--rendezvous", place.rendezvous);
  return !address.ok() || !address->IsLoopback();
}

}  // namespace

std::string RankKey::Prove(std::string_view role, std::string_view challenge) const {
  return core::KeyedProof(secret_, absl::StrCat(std::string(role), " ", std::string(challenge)));
}

bool RankKey::IsProven(std::string_view role, std::string_view challenge, std::string_view proof) const {
  return core::SameSecret(proof, Prove(role, challenge));
}

std::string NewNonce() {
  const std::array<uint64_t, 2> words = {core::DeviceRandom(), core::DeviceRandom()};
  return std::string(reinterpret_cast<const char*>(words.data()), sizeof(words));
}

std::string NewRankSecret() { return absl::BytesToHexString(NewNonce()); }

absl::StatusOr<RankKey> ReadRankKey(const std::string& key_file, const RankPlace& place, bool insecure,
                                    const core::Environment& environment) {
  std::string source = kRankKeyVariable;
  std::optional<std::string> text = environment(kRankKeyVariable);
  if (!key_file.empty()) {
    source = "--rendezvous_key_file=" + key_file;
    ASSIGN_OR_RETURN(text, formats::ReadNamedFile("rendezvous_key_file", key_file));
  }
  if (text) {
    const std::string secret(absl::StripAsciiWhitespace(*text));
    if (secret.size() >= kLeastCharacters && secret.size() <= kMostCharacters) return RankKey(secret);
    return absl::InvalidArgumentError(absl::StrCat(source, ": expected a key of ", kLeastCharacters, " to ",
                                                   kMostCharacters, " characters, got ", secret.size(),
                                                   "; `openssl rand -hex 16` makes one"));
  }
  if (insecure || !OthersReach(place)) return RankKey();
  return absl::InvalidArgumentError(absl::StrCat("the ranks meet at ", place.rendezvous,
                                                 ", which other hosts reach: expected a key that they share, got none; "
                                                 "export ",
                                                 kRankKeyVariable,
                                                 "=$(openssl rand -hex 16) before the launcher starts them, give all "
                                                 "of them one --rendezvous_key_file, or say --insecure"));
}

}  // namespace causeway::worker
