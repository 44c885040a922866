// Ranks that are processes, over TCP, by Gloo (libgloo): a connection for each pair.
//
// Gloo provides connections, and transfers by rank and tag; the algorithms are those of OrderedCollectives, because
// Gloo's own sum in an order that depends on the size. A rank that has gone is noticed at once, by its connection.
//
//   Make: opens a listening socket for each other rank ─► `exchange` distributes the addresses ─► connects
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/ranks/rendezvous.h"
#include "worker/ranks/wire.h"

namespace causeway::worker {

struct GlooOptions {
  int rank = 0;
  int world = 1;
  std::string host;        // for messages
  std::string address;     // this host's, at which the other ranks reach it
  double timeout_s = 600;  // for connecting
};

// Gives every rank's contact to all of them, in the order of the ranks.
using ExchangeContacts = std::function<absl::StatusOr<std::vector<RankContact>>(const RankContact& mine)>;

// UNAVAILABLE names a rank that cannot be reached. Other statuses are those of the exchange.
absl::StatusOr<std::shared_ptr<Wire>> ConnectByGloo(const GlooOptions& options, const ExchangeContacts& exchange);

}  // namespace causeway::worker
