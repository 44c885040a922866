// News of the run's settings, as the coordinator tells it in a welcome or with an update.
#pragma once

#include "absl/status/status.h"
#include "core/run_settings.h"
#include "worker/site/site_state.h"

namespace causeway::worker {

// Adds to `settings` the revisions that they lack. In quorum mode a revision may come late, and holds from the step
// after the one that runs; in synchronous mode the coordinator has seen to it. INTERNAL: a revision cannot be read.
absl::Status Learn(const core::SettingsChain& told, const SiteState& state, core::RunSettings& settings);

}  // namespace causeway::worker
