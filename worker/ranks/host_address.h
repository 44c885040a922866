// The addresses at which the ranks of a site listen, and reach each other.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace causeway::worker {

std::string HostName();

// The address at which the ranks that meet at HOST:PORT reach this host. INVALID_ARGUMENT: HOST cannot be looked up.
absl::StatusOr<std::string> OwnAddress(const std::string& rendezvous);

// The address at which rank 0 listens: the given one alone. A name of this host that leads to loopback stands for the
// address that others reach; one that is no address of this host (a service in front of it) for all of them.
absl::StatusOr<std::string> ListenAddress(const std::string& rendezvous);

}  // namespace causeway::worker
