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

// Parses the value of the flag, variable or option called `name`: HOST:PORT with a port from 0 to 65535, an IPv6
// address in brackets. Spaces around it and a slash at its end do not count. INVALID_ARGUMENT: anything else, including
// a URL, because the coordinator's protocol is not what http:// promises.
absl::StatusOr<Address> ParseAddress(const std::string& name, const std::string& text);

}  // namespace causeway::core
