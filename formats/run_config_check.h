// The checks of several sections of a run's config together, once each is right by itself.
#pragma once

#include "core/run_config.h"
#include "formats/field_check.h"

namespace causeway::formats {

void CheckSections(const core::RunConfig& config, FieldCheck& check);

}  // namespace causeway::formats
