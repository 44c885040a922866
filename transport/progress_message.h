// A site's report as a message, with a field for each figure in the list of core/progress.h.
#pragma once

#include <vector>

#include "causeway/v1/coordinator.pb.h"
#include "core/progress.h"
#include "transport/field_limits.h"

namespace causeway::transport {

void ToProto(const core::Progress& progress, v1::Progress* message);
core::Progress FromProto(const v1::Progress& message);

// The limits on its fields, and on those of the messages in it.
std::vector<FieldLimit> ProgressLimits();

}  // namespace causeway::transport
