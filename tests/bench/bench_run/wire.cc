#include "tests/bench/bench_run/wire.h"

#include <spdlog/spdlog.h>

#include <cstdlib>
#include <utility>

#include "absl/strings/str_split.h"
#include "core/check.h"
#include "ctl/client_flags.h"
#include "formats/run_yaml.h"
#include "tests/bench/bench_run/bench_run.h"
#include "tests/bench/bench_run/light_payloads.h"
#include "transport/sharded_link.h"

namespace causeway::bench {

std::vector<std::string> NamesOfSites() { return absl::StrSplit(Given<std::string>("sites"), ','); }

absl::StatusOr<std::unique_ptr<transport::SessionLink>> LinkOf(const std::string& site) {
  const std::vector<std::string> texts = absl::StrSplit(Given<std::string>("coordinator"), ',');
  std::vector<transport::LinkOptions> shards;
  for (const std::string& text : texts) {
    ASSIGN_OR_RETURN(const transport::Address address, core::ParseAddress("an address", text));
    ASSIGN_OR_RETURN(const transport::ChannelOptions channel, ctl::ReadChannelOptions(address));
    shards.push_back({.coordinator = address, .channel = channel, .site = site, .channels = Given<int>("channels")});
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
