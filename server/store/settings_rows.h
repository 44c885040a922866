// The table of changes of the run's settings.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/run_settings.h"
#include "server/store/sqlite.h"

namespace causeway::server {

absl::Status WriteSettings(Database& database, const core::SettingsChain& settings);  // after those that are there
absl::StatusOr<core::SettingsChain> LoadSettings(Database& database);

}  // namespace causeway::server
