// Advice on a run.yaml that is valid but probably not intended, for the person who starts the run.
#pragma once

#include <string>
#include <vector>

#include "core/run_config.h"

namespace causeway::formats {

// A sentence for each doubt about the codec section, naming key, value and a better choice (docs/codecs.md).
std::vector<std::string> CodecAdvice(const core::CodecConfig& codec);

// All doubts about a run: those, and StepsAdvice (formats/steps_check.h).
std::vector<std::string> RunAdvice(const core::RunConfig& config);

}  // namespace causeway::formats
