#include "transport/proxy.h"

#include <arpa/inet.h>

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/check.h"
#include "core/text.h"

namespace causeway::transport {
namespace {

constexpr const char* kProxyVariables[] = {"grpc_proxy", "https_proxy", "HTTPS_PROXY", "http_proxy",
                                           "HTTP_PROXY", "all_proxy",   "ALL_PROXY"};
constexpr const char* kDirectVariables[] = {"no_grpc_proxy", "no_proxy", "NO_PROXY"};

// The first of the variables that is set to something.
template <size_t kCount>
std::pair<std::string, std::string> FirstSet(const char* const (&names)[kCount], const core::Environment& environment) {
  for (const char* const name : names) {
    const std::string value(absl::StripAsciiWhitespace(environment(name).value_or("")));
    if (!value.empty()) return {name, value};
  }
  return {};
}

// %40 is '@'; what is no such code stays.
std::string PercentDecoded(absl::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool code =
        text[i] == '%' && i + 2 < text.size() && absl::ascii_isxdigit(text[i + 1]) && absl::ascii_isxdigit(text[i + 2]);
    decoded += code ? absl::HexStringToBytes(text.substr(i + 1, 2)) : std::string(1, text[i]);
    if (code) i += 2;
  }
  return decoded;
}

// The bytes of an IPv4 or IPv6 address; empty for a name.
std::string AddressBytes(const std::string& host) {
  char bytes[sizeof(in6_addr)];
  if (inet_pton(AF_INET, host.c_str(), bytes) == 1) return {bytes, sizeof(in_addr)};
  if (inet_pton(AF_INET6, host.c_str(), bytes) == 1) return {bytes, sizeof(in6_addr)};
  return "";
}

// "10.0.0.0/8"
bool IsInNetwork(const std::string& host, absl::string_view network) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(network, absl::MaxSplits('/', 1));
  const std::string bytes = AddressBytes(host), base = AddressBytes(parts.first);
  size_t bits = 0;
  if (bytes.empty() || bytes.size() != base.size() || !absl::SimpleAtoi(parts.second, &bits)) return false;
  if (bits > 8 * bytes.size()) return false;
  for (size_t bit = 0; bit < bits; ++bit) {
    const int mask = 0x80 >> (bit % 8);
    if (((bytes[bit / 8] ^ base[bit / 8]) & mask) != 0) return false;
  }
  return true;
}

// An entry of no_proxy: "*", a host, a domain with all hosts in it (".example.com" or "example.com"), an address or a
// network, each but a network with a port or without.
bool Covers(absl::string_view entry, const core::Address& coordinator) {
  if (entry == "*") return true;
  if (IsInNetwork(coordinator.host, entry)) return true;
  std::string host(entry);
  if (const auto with_port = core::ParseAddress("no_proxy", host); with_port.ok()) {
    if (with_port->port != coordinator.port) return false;
    host = with_port->host;
  }
  absl::string_view name = host;
  if (absl::ConsumePrefix(&name, "[")) absl::ConsumeSuffix(&name, "]");
  absl::ConsumePrefix(&name, "*");
  absl::ConsumePrefix(&name, ".");
  if (name.empty()) return false;
  return absl::EqualsIgnoreCase(coordinator.host, name) ||
         absl::EndsWithIgnoreCase(coordinator.host, absl::StrCat(".", name));
}

// "http://user:password@proxy:3128" as it may be shown.
std::string WithoutPassword(const std::string& value) {
  const size_t scheme = value.find("://"), at = value.rfind('@');
  if (at == std::string::npos) return value;
  return absl::StrCat(scheme == std::string::npos ? "" : value.substr(0, scheme + 3), "…", value.substr(at));
}

absl::StatusOr<Proxy> ParseProxy(const std::string& name, const std::string& value) {
  const auto wrong = [&](const std::string& why) {
    return absl::InvalidArgumentError(absl::StrCat("--use_proxy: ", name,
                                                   ": expected an HTTP proxy, http://[USER:PASSWORD@]HOST:PORT, got ",
                                                   core::Quoted(WithoutPassword(value)), why));
  };
  absl::string_view rest = value;
  if (const size_t scheme = rest.find("://"); scheme != absl::string_view::npos) {
    const std::string kind = absl::AsciiStrToLower(rest.substr(0, scheme));
    if (kind == "https") return wrong(": gRPC speaks no TLS to a proxy; write http:// if it takes connections without");
    if (kind != "http") return wrong(absl::StrCat(": gRPC cannot use one of ", core::Printable(kind), "://"));
    rest = rest.substr(scheme + 3);
  }
  Proxy proxy{.address = {}, .credentials = "", .source = name};
  if (const size_t at = rest.rfind('@'); at != absl::string_view::npos) {
    proxy.credentials = PercentDecoded(rest.substr(0, at));
    rest = rest.substr(at + 1);
  }
  const absl::StatusOr<core::Address> address = core::ParseAddress(name, std::string(rest));
  if (!address.ok()) return wrong("");
  proxy.address = *address;
  return proxy;
}

}  // namespace

absl::StatusOr<std::optional<Proxy>> FindProxy(const core::Address& coordinator, const core::Environment& environment) {
  const auto [name, value] = FirstSet(kProxyVariables, environment);
  if (name.empty()) {
    return absl::InvalidArgumentError(
        "--use_proxy: expected a proxy in https_proxy, http_proxy, all_proxy or grpc_proxy of the environment, got "
        "none "
        "of them");
  }
  const auto [direct_name, direct] = FirstSet(kDirectVariables, environment);
  for (const absl::string_view entry : absl::StrSplit(direct, absl::ByAnyChar(", \t"), absl::SkipEmpty())) {
    if (Covers(entry, coordinator)) return std::optional<Proxy>();
  }
  ASSIGN_OR_RETURN(Proxy proxy, ParseProxy(name, value));
  return std::optional<Proxy>(std::move(proxy));
}

std::string ProxyHeader(const std::string& credentials) {
  return absl::StrCat("Proxy-Authorization:Basic ", absl::Base64Escape(credentials));
}

}  // namespace causeway::transport
