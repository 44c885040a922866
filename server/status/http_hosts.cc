#include "server/status/http_hosts.h"

#include <arpa/inet.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "absl/strings/ascii.h"

namespace causeway::server {
namespace {

bool IsAddress(const std::string& text) {
  in6_addr address;
  return inet_pton(AF_INET, text.c_str(), &address) == 1 || inet_pton(AF_INET6, text.c_str(), &address) == 1;
}

// Without a port, and without the brackets of an IPv6 address.
std::string NameOf(std::string_view host) {
  const size_t end = host.starts_with('[') ? host.find(']') : host.rfind(':');
  return std::string(host.starts_with('[') ? host.substr(1, end == host.npos ? end : end - 1) : host.substr(0, end));
}

}  // namespace

HttpHosts::HttpHosts(const std::vector<std::string>& names) : names_{"localhost"} {
  for (const std::string& name : names) names_.insert(absl::AsciiStrToLower(name));
  std::array<char, 256> own = {};
  if (gethostname(own.data(), own.size() - 1) == 0) names_.insert(absl::AsciiStrToLower(own.data()));
}

bool HttpHosts::Allows(std::string_view host) const {
  const std::string name = NameOf(host);
  return IsAddress(name) || names_.contains(absl::AsciiStrToLower(name));
}

}  // namespace causeway::server
