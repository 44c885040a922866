// The state that a process needs to continue a site, as named pieces of memory that a program keeps with its own
// checkpoint.
//
//   "site.json"                      run, site, session, lineage, step, versions (worker/site/site_checkpoint.h), and
//                                    the digest of θ that goes with it
//   "3.anchor", "3.momentum", …      arrays of fragment 3
//   "3.chunks"                       its contribution, if sent and not admitted
//
// Constant once made; thread-safe to read.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/aligned.h"
#include "worker/site/checkpoint_store.h"

namespace causeway::worker {

struct SiteStateParts {
  using Part = std::pair<std::string, std::span<const std::byte>>;

  std::vector<Part> parts;
  std::vector<core::AlignedFloats> storage;  // memory that the parts point into
};

// Copies the checkpoint's arrays.
SiteStateParts ToParts(const CheckpointIdentity& identity, const SiteCheckpoint& checkpoint, uint64_t theta_digest);

struct RestoredParts {
  LoadedCheckpoint checkpoint;
  uint64_t theta_digest = 0;
};

// INVALID_ARGUMENT names the part that is missing or differs from what ToParts makes.
absl::StatusOr<RestoredParts> FromParts(std::span<const SiteStateParts::Part> parts);

}  // namespace causeway::worker
