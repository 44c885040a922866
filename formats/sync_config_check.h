// The section `sync` of a run's config: when which part of the model is exchanged.
#pragma once

#include "causeway/v1/run_config.pb.h"
#include "core/run_config.h"
#include "formats/field_check.h"

namespace causeway::formats {

// `sync` has the defaults filled in, `given` what was written.
core::SyncConfig ReadSync(const v1::Sync& sync, const v1::Sync& given, FieldCheck& check);

// No fragment may be empty (core::BuildFragmentMap): with too few layers or tensors the run could never start.
void CheckFragmentsFit(const core::RunConfig& config, FieldCheck& check);

}  // namespace causeway::formats
