// The rendezvous of a site's ranks, once, before they train: rank 0 waits at an address known to all.
//
//   rank 1 ─┐ Meet(rank, world, host, identity, addresses)           ┌─► all of them, in their order
//   rank 2 ─┼────────────────────────► rank 0: are all here, ────────┼─►
//   rank 3 ─┘                                  and alike?            └─►
//
// A rank with another world or another identity, or a rank that appears twice, ends it for all, with both values in the
// message; a rank that does not come ends it after the timeout, with its number. Plain text, since it stays inside a
// site.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/ranks/rank_place.h"

namespace causeway::worker {

struct RankContact {
  std::string host;
  std::string addresses;
};

struct MeetOptions {
  RankPlace place;
  std::string identity;  // the same on all ranks
  double timeout_s = 600;
};

// INVALID_ARGUMENT: the ranks do not fit. DEADLINE_EXCEEDED: not all ranks have come. UNAVAILABLE: rank 0 cannot
// listen.
absl::StatusOr<std::vector<RankContact>> MeetRanks(const MeetOptions& options, const RankContact& mine);

std::string HostName();

// This host's address, at which ranks on other hosts reach it: the source address of its route to `rendezvous`;
// 127.0.0.1 if all are on this host.
absl::StatusOr<std::string> OwnAddress(const std::string& rendezvous);

}  // namespace causeway::worker
