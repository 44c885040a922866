// What a run.yaml is free to ask for, but probably did not mean: for whoever starts a run to read.
#pragma once

#include <string>
#include <vector>

#include "core/run_config.h"

namespace causeway::formats {

// A sentence for each doubt about the codec section, naming key, value and what does better (docs/codecs.md).
std::vector<std::string> CodecAdvice(const core::CodecConfig& codec);

}  // namespace causeway::formats
