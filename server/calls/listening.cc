#include "server/calls/listening.h"

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/check.h"

namespace causeway::server {
namespace {

absl::Status ReadShard(const ListeningFlags& flags, Listening& listening) {
  const std::vector<std::string> parts = absl::StrSplit(flags.shard, '/');
  core::Shard& shard = listening.shard;
  const bool parsed =
      parts.size() == 2 && absl::SimpleAtoi(parts[0], &shard.index) && absl::SimpleAtoi(parts[1], &shard.count);
  if (!parsed || shard.index < 0 || shard.index >= shard.count) {
    return absl::InvalidArgumentError(absl::StrCat("--shard: expected i/n with i from 0 to n - 1, got ", flags.shard));
  }
  if (shard.leads() != flags.membership.empty()) {
    return absl::InvalidArgumentError(
        shard.leads() ? absl::StrCat("--membership: shard 0 follows no other shard, got ", flags.membership)
                      : absl::StrCat("--membership: expected HOST:PORT of shard 0, which ", shard.Text(), " follows"));
  }
  if (shard.leads()) return absl::OkStatus();
  ASSIGN_OR_RETURN(listening.lead, core::ParseAddress("--membership", flags.membership));
  ASSIGN_OR_RETURN(listening.lead_channel, transport::ReadClientFlags({.insecure = flags.insecure,
                                                                       .tls_ca = flags.tls_ca,
                                                                       .tls_cert = flags.membership_tls_cert,
                                                                       .tls_key = flags.membership_tls_key,
                                                                       .token_file = flags.membership_token_file},
                                                                      listening.lead));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Listening> ReadListening(const ListeningFlags& flags) {
  Listening listening;
  ASSIGN_OR_RETURN(listening.grpc, core::ParseAddress("--listen", flags.listen));
  ASSIGN_OR_RETURN(listening.http, core::ParseAddress("--http", flags.http));
  RETURN_IF_ERROR(transport::CheckHttpAllowed(listening.http, flags.insecure_http));
  if (!flags.health.empty()) {
    ASSIGN_OR_RETURN(listening.health, core::ParseAddress("--health", flags.health));
  }
  ASSIGN_OR_RETURN(listening.tls, transport::ReadTlsFlags(flags.tls_ca, flags.tls_cert, flags.tls_key));
  RETURN_IF_ERROR(ReadShard(flags, listening));
  if (!listening.tls.given()) {
    RETURN_IF_ERROR(transport::CheckPlaintextAllowed(listening.grpc, flags.insecure));
  }
  return listening;
}

}  // namespace causeway::server
