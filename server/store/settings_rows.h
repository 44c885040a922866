// The table of changes of the run's settings.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "core/run_settings.h"
#include "server/store/sqlite.h"

namespace causeway::server {

absl::Status WriteSettings(Database& database, const core::SettingsRevision& revision);
absl::Status LoadSettings(Database& database, std::vector<core::SettingsRevision>& settings);  // oldest first

}  // namespace causeway::server
