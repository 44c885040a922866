#include "core/address.h"

#include <arpa/inet.h>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/text.h"

namespace causeway::core {

std::string Address::Text() const {
  return host.find(':') == std::string::npos ? absl::StrCat(host, ":", port) : absl::StrCat("[", host, "]:", port);
}

bool Address::IsLoopback() const {
  if (host == "localhost" || host == "::1") return true;
  return host.starts_with("127.") && IsNumericAddress(host);  // "127.example.com" is a name
}

bool IsNumericAddress(const std::string& host) {
  in6_addr address;
  const std::string without_zone = host.substr(0, host.find('%'));  // fe80::1%eth0
  return inet_pton(AF_INET, host.c_str(), &address) == 1 || inet_pton(AF_INET6, without_zone.c_str(), &address) == 1;
}

absl::StatusOr<Address> ParseAddress(const std::string& name, const std::string& text) {
  const auto wrong = [&](const auto&... expected) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": expected ", expected..., ", got ", Quoted(text)));
  };
  absl::string_view rest = absl::StripAsciiWhitespace(text);
  if (const size_t scheme = rest.find("://"); scheme != absl::string_view::npos) {
    return wrong("HOST:PORT without ", Printable({rest.data(), scheme}), "://");
  }
  while (absl::ConsumeSuffix(&rest, "/")) continue;
  Address address;
  const size_t colon = rest.rfind(':');
  if (colon == absl::string_view::npos || colon == 0 || !absl::SimpleAtoi(rest.substr(colon + 1), &address.port) ||
      address.port < 0 || address.port > 65535) {
    return wrong("HOST:PORT with a port from 0 to 65535");
  }
  address.host = std::string(rest.substr(0, colon));
  const bool opens = address.host.front() == '[';
  const bool closes = address.host.back() == ']';
  if (opens || closes) {
    if (!opens || !closes || address.host.find(':') == std::string::npos) return wrong("an IPv6 address in brackets");
    address.host = address.host.substr(1, address.host.size() - 2);
  } else if (address.host.find(':') != std::string::npos) {
    return wrong("an IPv6 address in brackets, [", address.host, "]:", address.port);
  } else if (address.host.find_first_of(" \t\r\n\v\f") != std::string::npos) {
    return wrong("HOST:PORT without spaces inside");
  }
  return address;
}

}  // namespace causeway::core
