// The model that a first joiner may bring: that of run.yaml, or, where the sites bring it, one that this machine can
// hold. It is then that of all others, so that a site gone wrong would keep the honest ones out. Thread-safe as long as
// it is not written to.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "core/manifest.h"
#include "core/run_config.h"
#include "core/shard.h"

namespace causeway::server {

struct ModelBounds {
  std::optional<core::Manifest> manifest;  // as run.yaml says; nothing: it does not
  int64_t memory_bytes = 0;                // of the machine; 0: it does not matter
  core::Shard shard;                       // whose share of the parameters is held here

  // INVALID_ARGUMENT with the first difference, or with what it would need.
  absl::Status Check(const core::Manifest& brought) const;
};

// On this machine.
ModelBounds BoundsOf(const core::RunConfig& config, const core::Shard& shard);

}  // namespace causeway::server
