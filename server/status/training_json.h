// A site's internal training figures, as members of its object in GET /status: its optimizer's state, its ranks.
#pragma once

#include <optional>
#include <string>

#include "core/membership.h"
#include "core/progress.h"
#include "server/status/json_writer.h"

namespace causeway::server {

// Null where nothing was measured.
inline std::optional<double> Known(double value) { return value > 0 ? std::optional(value) : std::nullopt; }

// A reason, shortened if the status is reduced because of its size.
std::string Shortened(const std::string& reason, bool reduced);

void WriteOffload(JsonWriter& json, const std::optional<core::OffloadProgress>& offload, bool reduced);
void WriteRanks(JsonWriter& json, const core::RankProgress& ranks, bool reduced);

}  // namespace causeway::server
