// The identifiers of a run: names, numbers, and the shard that a coordinator is.
#pragma once

#include <cstdint>
#include <string>

namespace causeway::core {

using SiteId = std::string;     // one datacenter; unique in a run, 1 to 64 of [A-Za-z0-9._-]
using RunId = std::string;      // one training run
using SessionId = std::string;  // a worker's identity, kept over reconnects and restarts from its checkpoint

using FragmentId = int32_t;  // 0 … P−1
using Version = int64_t;     // version v of a fragment: how many rounds made it; 0 is the initial parameters
using Step = int64_t;        // inner steps, counted from 1; 0 is "before the first"

// True for a name that can be used unchanged in a file name, a metric label and a log line.
bool IsValidName(const std::string& name);

// The fragments that a coordinator owns. A run may have several coordinators, its shards: shard i of n receives, merges
// and returns the fragments f with f mod n = i, and shard 0 decides which sites take part. A single coordinator is
// shard 0 of 1. Immutable values, thread-safe. Source: docs/shards.md.
struct Shard {
  int index = 0;
  int count = 1;

  bool leads() const { return index == 0; }
  bool alone() const { return count == 1; }
  int OwnerOf(FragmentId fragment) const { return fragment % count; }
  bool Owns(FragmentId fragment) const { return OwnerOf(fragment) == index; }
  std::string Text() const { return "shard " + std::to_string(index) + " of " + std::to_string(count); }

  friend bool operator==(const Shard&, const Shard&) = default;
};

}  // namespace causeway::core
