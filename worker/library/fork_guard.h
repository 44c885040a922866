// Keeps a fork of the host process from inheriting connections to a run's coordinator. A child that held one would keep
// it open when the parent is killed, and the coordinator would go on waiting for the site.
//
//   Watch(addresses)      at each fork the parent lists its sockets to them, and the child closes those
//
// The child only calls close, which is safe there. Thread-safe.
#pragma once

#include <vector>

#include "transport/channel.h"

namespace causeway::worker {

// Takes effect from this call on, for the whole process. Addresses are resolved now, so that the call may take as long
// as the resolver does.
void CloseInForkedChildren(const std::vector<transport::Address>& addresses);

}  // namespace causeway::worker
