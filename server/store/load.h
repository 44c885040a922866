// Loads the rows of earlier lives (schema.h), from which a coordinator starts. Errors are DATA_LOSS and name the row.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/statusor.h"
#include "core/ids.h"
#include "server/store/records.h"
#include "server/store/sqlite.h"

namespace causeway::server {

absl::StatusOr<StoredRun> LoadRun(Database& database, const core::Shard& shard);

// For each segment that a row names, the end of its last payload.
absl::StatusOr<std::map<int64_t, int64_t>> LoadSegmentEnds(Database& database);

// The contributions that a start merges again, or that wait to be merged.
absl::StatusOr<std::vector<Extent>> LoadNeededPayloads(Database& database);

// Returns fewer once their texts reach core::kMaxHistoryAnswerBytes.
absl::StatusOr<std::vector<Event>> LoadEvents(Database& database, int64_t after_id, int64_t limit,
                                              const std::string& kind);

}  // namespace causeway::server
