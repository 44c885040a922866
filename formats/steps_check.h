// run.steps beside the schedule of sync: what a run of that length would leave out.
#pragma once

#include <string>
#include <vector>

#include "core/run_config.h"
#include "formats/field_check.h"

namespace causeway::formats {

// A run that ends before some fragment is sent for the first time would export that fragment's initial values.
void CheckSteps(const core::RunConfig& config, FieldCheck& check);

// A sentence where steps come after the last send, so that no update has them; otherwise none.
std::vector<std::string> StepsAdvice(const core::RunConfig& config);

}  // namespace causeway::formats
