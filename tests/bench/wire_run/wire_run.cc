#include "tests/bench/wire_run/wire_run.h"

#include <spdlog/spdlog.h>

#include <cstdlib>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/strings/str_split.h"
#include "core/check.h"
#include "ctl/client_flags.h"
#include "formats/run_yaml.h"
#include "tests/bench/wire_run/light_payloads.h"
#include "transport/sharded_link.h"

ABSL_DECLARE_FLAG(std::string, coordinator);
ABSL_DECLARE_FLAG(int, channels);

namespace causeway::bench {

std::vector<std::string> SiteNames() { return absl::StrSplit(absl::GetFlag(FLAGS_sites), ','); }

absl::StatusOr<std::unique_ptr<transport::SessionLink>> LinkOf(const std::string& site) {
  const std::vector<std::string> texts = absl::StrSplit(absl::GetFlag(FLAGS_coordinator), ',');
  std::vector<transport::LinkOptions> shards;
  for (const std::string& text : texts) {
    ASSIGN_OR_RETURN(const transport::Address address, core::ParseAddress("an address", text));
    ASSIGN_OR_RETURN(const transport::ChannelOptions channel, ctl::ReadChannelOptions(address));
    shards.push_back(
        {.coordinator = address, .channel = channel, .site = site, .channels = absl::GetFlag(FLAGS_channels)});
  }
  return transport::MakeLink(std::move(shards));
}

absl::StatusOr<DescribedRun> Describe(transport::SessionLink& link) {
  ASSIGN_OR_RETURN(const transport::RunDescription description, link.Describe([] { return false; }));
  DescribedRun run;
  ASSIGN_OR_RETURN(run.config, formats::ParseRunConfig(description.run_config));
  ASSIGN_OR_RETURN(run.map, MapOf(run.config));
  return run;
}

void End(const absl::Status& status) {
  spdlog::error("{}", status.ToString());
  std::_Exit(1);
}

}  // namespace causeway::bench
