// The addresses at which a coordinator listens, and its shard, as its flags say.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "core/address.h"
#include "core/ids.h"
#include "transport/channel.h"
#include "transport/tls.h"

namespace causeway::server {

// The values of the flags with these names.
struct ListeningFlags {
  std::string listen, http, health;
  std::string shard, membership;
  bool insecure = false, insecure_http = false;
  std::string tls_ca, tls_cert, tls_key;
  std::string membership_token_file, membership_tls_cert, membership_tls_key;
};

// Our own addresses, and that of the run's shard 0.
struct Listening {
  core::Address grpc;
  core::Address http;
  std::optional<core::Address> health;
  transport::TlsFiles tls;
  core::Shard shard;
  core::Address lead;  // shard 0's address, for a shard beyond the first
  transport::ChannelOptions lead_channel;
};

// INVALID_ARGUMENT names the flag, what was expected, and the value given.
absl::StatusOr<Listening> ReadListening(const ListeningFlags& flags);

}  // namespace causeway::server
