// The secret that the ranks of a site share, and show each other without telling it: only who knows it counts as a
// rank.
//
//   CAUSEWAY_RENDEZVOUS_KEY   16 characters or more, the same for all ranks; --nproc makes one for its processes
//   --rendezvous_key_file     a file with it, which takes precedence
//
// Constant; thread-safe.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "core/environment.h"
#include "worker/ranks/rank_place.h"

namespace causeway::worker {

inline constexpr char kRankKeyVariable[] = "CAUSEWAY_RENDEZVOUS_KEY";

class RankKey {
 public:
  RankKey() = default;  // none: anyone who can connect is believed
  explicit RankKey(std::string secret) : secret_(std::move(secret)) {}

  bool is_given() const { return !secret_.empty(); }
  // HMAC-SHA256 of these, `role` saying who proves: 32 bytes.
  std::string Prove(std::string_view role, std::string_view challenge) const;
  bool IsProven(std::string_view role, std::string_view challenge, std::string_view proof) const;

 private:
  std::string secret_;
};

std::string NewRankSecret();  // 32 hexadecimal digits
std::string NewNonce();       // 16 random bytes

// INVALID_ARGUMENT: the file cannot be read, the key is too short, with its source, or there is none, though other
// hosts reach the rendezvous; `insecure` allows that.
absl::StatusOr<RankKey> ReadRankKey(const std::string& key_file, const RankPlace& place, bool insecure,
                                    const core::Environment& environment);

}  // namespace causeway::worker
