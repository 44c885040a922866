// Rows of earlier lives (schema.h) as what a coordinator starts from. Errors are DATA_LOSS that names the row.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/statusor.h"
#include "core/shard.h"
#include "server/store/records.h"
#include "server/store/sqlite.h"

namespace causeway::server {

absl::StatusOr<StoredRun> LoadRun(Database& database, const core::Shard& shard);

// Of each segment that a row names, where its last payload ends.
absl::StatusOr<std::map<int64_t, int64_t>> LoadSegmentEnds(Database& database);

// Fewer where their texts come to core::kMaxHistoryAnswerBytes.
absl::StatusOr<std::vector<Event>> LoadEvents(Database& database, int64_t after_id, int64_t limit,
                                              const std::string& kind);

}  // namespace causeway::server
