// Where a program listens or is reached: HOST:PORT.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace causeway::core {

struct Address {
  std::string host;  // name, IPv4, or IPv6 without brackets
  int port = 0;

  std::string Text() const;  // "host:port", IPv6 in brackets
  bool IsLoopback() const;   // localhost, 127.x.y.z, ::1
};

bool IsNumericAddress(const std::string& host);  // IPv4, or IPv6 without brackets

// The address that a flag, a variable or an option of that name has: HOST:PORT with a port from 0 to 65535, an IPv6
// address in brackets. Spaces around it and a slash at its end do not count. INVALID_ARGUMENT: anything else, a URL
// among it, because the coordinator's protocol is not what http:// promises.
absl::StatusOr<Address> ParseAddress(const std::string& name, const std::string& text);

}  // namespace causeway::core
