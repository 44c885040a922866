// The section `inner` of a run's config: the optimizer inside each site, and the size of a step.
#pragma once

#include "causeway/v1/run_config.pb.h"
#include "core/run_config.h"
#include "formats/field_check.h"

namespace causeway::formats {

// `inner` has the defaults filled in.
core::InnerConfig ReadInner(const v1::Inner& inner, FieldCheck& check);

// Whether the section fits the model, and the rule by which sites count.
void CheckInnerFits(const core::RunConfig& config, FieldCheck& check);

}  // namespace causeway::formats
