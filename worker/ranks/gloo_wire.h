// Ranks that are processes, over TCP, by Gloo (libgloo): a connection for each pair.
//
// Gloo provides connections, and transfers by rank and tag; the algorithms are those of OrderedCollectives, because
// Gloo's own sum in an order that depends on the size. A rank that has gone is noticed at once, by its connection.
//
// The connections are those of worker/ranks/gloo_mesh.h.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/ranks/gloo_mesh.h"
#include "worker/ranks/wire.h"

namespace causeway::worker {

// Statuses as ConnectMesh.
absl::StatusOr<std::shared_ptr<Wire>> ConnectByGloo(const GlooOptions& options, const ExchangeContacts& exchange);

}  // namespace causeway::worker
