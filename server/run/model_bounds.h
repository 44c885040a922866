// Bounds on the model that a first joiner may bring: run.yaml's or, where the sites bring it, one that this machine can
// hold. All other sites must then have the same model, so that without bounds a faulty site could keep the honest ones
// out. Thread-safe while not written to.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "core/ids.h"
#include "core/manifest.h"
#include "core/run_config.h"

namespace causeway::server {

struct ModelBounds {
  std::optional<core::Manifest> manifest;  // from run.yaml; nullopt: it gives none
  int64_t memory_bytes = 0;                // the machine's memory; 0: unlimited
  core::Shard shard;                       // the shard whose share of the parameters is held here

  // INVALID_ARGUMENT with the first difference, or with the memory that the model would need.
  absl::Status Check(const core::Manifest& brought) const;
};

// The bounds on this machine.
ModelBounds BoundsOf(const core::RunConfig& config, const core::Shard& shard);

}  // namespace causeway::server
