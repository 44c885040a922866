// The payloads of light sites: the manifest of a synthetic run, its initial parameters and contributions, made of
// numbers that depend on place alone and are never held as a whole. Immutable, thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/buffer_pool.h"
#include "core/fragment_map.h"
#include "core/run_config.h"

namespace causeway::bench {

using core::Chunks;

// The map that every site and the coordinator derive from the config. INVALID_ARGUMENT if the run is not synthetic.
absl::StatusOr<core::FragmentMap> MapOf(const core::RunConfig& config);

// The fragment's contribution, encoded without feedback: the bytes of a chunk do not depend on its version, so one
// serves for all sites and all rounds.
Chunks MakeContribution(const core::Fragment& fragment, const core::RunConfig& config);

// The initial parameters as float32 chunks (4 bytes a value), and their digest, which needs no memory.
Chunks MakeInitial(const core::Fragment& fragment);
uint64_t InitialDigest(const core::Fragment& fragment);

int64_t PayloadBytes(const std::vector<core::Bytes>& chunks);

}  // namespace causeway::bench
