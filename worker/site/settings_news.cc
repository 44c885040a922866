#include "worker/site/settings_news.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "formats/run_yaml.h"

namespace causeway::worker {

absl::Status Learn(const core::SettingsChain& told, const SiteState& state, core::RunSettings& settings) {
  const int fragments = state.schedule.num_fragments();
  settings.BeginAfter(told.before);
  for (const core::SettingsRevision& revision : told.revisions) {
    if (revision.number <= settings.revision()) continue;
    absl::StatusOr<core::RunConfig> config = formats::ParseRunConfig(revision.run_config);
    if (config.ok() && std::ssize(revision.versions) != fragments) {
      config = absl::InvalidArgumentError(
          absl::StrCat("expected ", fragments, " versions of fragments, got ", revision.versions.size()));
    }
    if (!config.ok()) {
      return absl::InternalError(absl::StrCat("revision ", revision.number,
                                              " of the run's settings: ", std::string(config.status().message())));
    }
    const core::Step from = state.synchronous() ? revision.step : std::max(revision.step, state.step + 2);
    spdlog::info("the run's settings change from step {} on: {}", from, absl::StrJoin(revision.changes, ", "));
    settings.Add(revision, *std::move(config), from);
  }
  return absl::OkStatus();
}

}  // namespace causeway::worker
