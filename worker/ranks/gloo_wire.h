// Ranks that are processes, over TCP, by Gloo (libgloo): a connection for each pair.
//
// Gloo provides connections, and transfers by rank and tag; the algorithms are those of OrderedCollectives, because
// Gloo's own sum in an order that depends on the size. A rank that has gone is noticed at once, by its connection.
//
// The connections are those of GlooMesh.
#pragma once

#include <gloo/context.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/ranks/rank_place.h"
#include "worker/ranks/rendezvous.h"
#include "worker/ranks/wire.h"

namespace causeway::worker {

// A TCP connection between each two ranks, by Gloo (libgloo), each end of which has proven the site's key.
//
// Gloo's pairs listen, each at a port of its own, and take the first one that connects for the other rank. So nothing
// listens before all ranks are there; then both ends of each pair prove the key over numbers that the ranks have told
// each other at their rendezvous, and if one does not within 5 s, all connections are made anew, on fresh ports.
//
//   exchange: all here ─► listen ─► exchange: addresses ─► connect, prove ─► exchange: did it work for all? ─► done
//                            └──────────────────────── no: up to 10 times ──────────────────┘
//
// A stranger that speaks Gloo's own protocol in the moment between can end the process, as a broken network does.
struct GlooOptions {
  int rank = 0;
  int world = 1;
  std::string host;     // for error messages
  std::string address;  // at which the other ranks reach this host
  RankKey key;
  double prove_s = 5;  // how long a connection may say nothing
};

// Gives every rank's contact to all of them, in the order of the ranks.
using ExchangeContacts = std::function<absl::StatusOr<std::vector<RankContact>>(const RankContact& mine)>;

struct GlooMesh {
  std::shared_ptr<gloo::Context> context;
  std::vector<std::string> hosts;
};

// UNAVAILABLE: it cannot listen, or names the ranks between which there is no connection. Other statuses are those of
// the exchange.
absl::StatusOr<GlooMesh> ConnectMesh(const GlooOptions& options, const ExchangeContacts& exchange);

// Statuses as ConnectMesh.
absl::StatusOr<std::shared_ptr<Wire>> ConnectByGloo(const GlooOptions& options, const ExchangeContacts& exchange);

}  // namespace causeway::worker
