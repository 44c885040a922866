// Advice on a run.yaml that is valid but probably not intended, for the person who starts the run.
#pragma once

#include <string>
#include <vector>

#include "core/run_config.h"
#include "formats/field_check.h"

namespace causeway::formats {

// A sentence for each doubt about the codec section, naming key, value and a better choice (docs/codecs.md).
std::vector<std::string> CodecAdvice(const core::CodecConfig& codec);

// All advice about a run: CodecAdvice and StepsAdvice.
std::vector<std::string> RunAdvice(const core::RunConfig& config);

// A run that ends before some fragment is sent for the first time would export that fragment's initial values.
void CheckSteps(const core::RunConfig& config, FieldCheck& check);

// A sentence where steps come after the last send, so that no update has them; otherwise none.
std::vector<std::string> StepsAdvice(const core::RunConfig& config);

}  // namespace causeway::formats
