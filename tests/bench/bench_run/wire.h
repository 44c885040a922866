// Shared by the ends of the wire, which hold no parameters: links to a coordinator, the run that it describes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/buffer_pool.h"
#include "core/fragment_map.h"
#include "core/run_config.h"
#include "transport/coordinator_link.h"

namespace causeway::bench {

// The payloads of light sites: the manifest of a synthetic run, its initial parameters and contributions, made of
// numbers that depend on place alone and are never held as a whole. Immutable, thread-safe.

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

std::vector<std::string> NamesOfSites();  // in --sites

// To --coordinator.
absl::StatusOr<std::unique_ptr<transport::SessionLink>> LinkOf(const std::string& site);

struct DescribedRun {
  core::RunConfig config;
  core::FragmentMap map;
};
absl::StatusOr<DescribedRun> Describe(transport::SessionLink& link);

// A benchmark that went wrong has nothing to tell: says why and ends the program.
[[noreturn]] void End(const absl::Status& status);

// For a site that does as little as it can. Thread-safe.
class IdleListener : public transport::LinkListener {
 public:
  transport::Standing GetStanding() override { return {}; }
  void OnSeedRequest() override {}
  void OnEntry(const core::Entry&) override {}
  void OnNotice(const std::string&) override {}
  void OnDrain(const std::string&) override {}
  void OnHold(bool) override {}
  void OnFailure(const absl::Status& status) override { End(status); }
};

}  // namespace causeway::bench
