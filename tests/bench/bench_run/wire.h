// Shared by the ends of the wire, which hold no parameters: links to a coordinator, the run that it describes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/fragment_map.h"
#include "core/run_config.h"
#include "transport/coordinator_link.h"

namespace causeway::bench {

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
