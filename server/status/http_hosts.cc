#include "server/status/http_hosts.h"

#include <unistd.h>

#include <array>

#include "absl/strings/ascii.h"
#include "core/address.h"

namespace causeway::server {
namespace {

constexpr char kHeader[] = "Host";

// Without its port; "" if it is no host.
std::string NameOf(const std::string& host) {
  auto address = core::ParseAddress(kHeader, host);
  if (!address.ok()) address = core::ParseAddress(kHeader, host + ":80");
  return address.ok() ? address->host : "";
}

}  // namespace

// The second is what Docker calls the host in its containers; no one can have .internal.
HttpHosts::HttpHosts(const std::vector<std::string>& names) : names_{"localhost", "host.docker.internal"} {
  for (const std::string& name : names) names_.insert(absl::AsciiStrToLower(name));
  std::array<char, 256> own = {};
  if (gethostname(own.data(), own.size() - 1) == 0) names_.insert(absl::AsciiStrToLower(own.data()));
}

bool HttpHosts::Allows(std::string_view host) const {
  std::string name = absl::AsciiStrToLower(NameOf(std::string(host)));
  if (name.ends_with('.')) name.pop_back();  // a whole name, as in DNS
  return core::IsNumericAddress(name) || names_.contains(name);
}

}  // namespace causeway::server
