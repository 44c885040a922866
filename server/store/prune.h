// What a snapshot makes superfluous, in rows: their payload is gone from disk only afterwards, so that a crash between
// leaves bytes that nobody names and the next start removes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/ids.h"
#include "server/store/sqlite.h"

namespace causeway::server {

struct PruneLimits {
  int64_t keep = 0;                  // snapshots of a fragment
  int64_t max_update_log_bytes = 0;  // of all fragments; updates after a fragment's newest snapshot stay anyway
  core::Version kept = -1;           // snapshots of that version stay, too
};

// After the row of a snapshot of this fragment; in a transaction of the caller. Gives the names of snapshots that can
// go.
absl::StatusOr<std::vector<std::string>> PruneRows(Database& database, core::FragmentId fragment,
                                                   const PruneLimits& limits);

absl::StatusOr<std::vector<int64_t>> LiveSegments(Database& database);
absl::StatusOr<std::vector<std::string>> LiveSnapshots(Database& database);  // names of files

// A seed that was cut short: without the run's record, nothing names its snapshots.
absl::Status ForgetUnfinishedSeed(Database& database);

// Removes every regular file of the directory that is not among `live`.
absl::Status RemoveFilesBut(const std::string& directory, const std::vector<std::string>& live);

}  // namespace causeway::server
