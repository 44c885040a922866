#include "ctl/client_flags.h"

#include <string>

#include "absl/flags/flag.h"

ABSL_FLAG(bool, insecure, false, "allow plaintext to addresses beyond loopback");
ABSL_FLAG(std::string, tls_ca, "",
          "TLS: PEM certificates of the CA that signs the coordinator's; give all three or none");
ABSL_FLAG(std::string, tls_cert, "", "TLS: the caller's own certificate in PEM; read again when it changes");
ABSL_FLAG(std::string, tls_key, "", "TLS: the certificate's private key in PEM");
ABSL_FLAG(std::string, token_file, "", "file with the token that the coordinator asks for");
ABSL_FLAG(bool, use_proxy, false, "use the HTTP proxy of https_proxy, http_proxy or all_proxy in the environment");

namespace causeway::ctl {

absl::StatusOr<transport::ChannelOptions> ReadChannelOptions(const transport::Address& address) {
  return transport::ReadClientFlags({.insecure = absl::GetFlag(FLAGS_insecure),
                                     .use_proxy = absl::GetFlag(FLAGS_use_proxy),
                                     .tls_ca = absl::GetFlag(FLAGS_tls_ca),
                                     .tls_cert = absl::GetFlag(FLAGS_tls_cert),
                                     .tls_key = absl::GetFlag(FLAGS_tls_key),
                                     .token_file = absl::GetFlag(FLAGS_token_file)},
                                    address);
}

}  // namespace causeway::ctl
