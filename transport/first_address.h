// The addresses of a name that has several, tried 250 ms apart as in RFC 8305, section 5: gRPC tries them one after the
// other, and waits for one that never answers (IPv6 that leads nowhere, a machine that is gone) as long as for a slow
// one.
//
//   getaddrinfo ─► the preferred one, then families in turn ─► connect … 250 ms … connect … ─► the first
#pragma once

#include <optional>
#include <string>

#include "core/address.h"

namespace causeway::transport {

// The first address that answers, numeric, with the port. `preferred`: the host that is tried first, if the name still
// has it; "": none. Nullopt: the name has one address or none, is an address itself, or no address answers within five
// seconds; gRPC then tries them, and says why. Thread-safe; blocks.
std::optional<core::Address> FirstThatAnswers(const core::Address& address, const std::string& preferred);

}  // namespace causeway::transport
