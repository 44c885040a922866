// The fragments that a coordinator owns. A run may have several coordinators, its shards: shard i of n receives, merges
// and returns the fragments f with f mod n = i, and shard 0 decides which sites take part. A single coordinator is
// shard 0 of 1. Immutable values, thread-safe. Source: docs/shards.md.
#pragma once

#include <string>

#include "core/ids.h"

namespace causeway::core {

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
