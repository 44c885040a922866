// A played pipeline schedule as a drawing: a row a device, a bar an operation, as long as it takes. Pure.
#pragma once

#include <string>

#include "plan/pipeline_time.h"

namespace causeway::plan {

// An SVG document. `title` stands above; F is blue, B and I are orange, W is green, pairs are purple, the second copy
// is darker; a bar that is wide enough has its stage and micro-batch.
std::string PipelineSvg(const PipelineSchedule& schedule, const PlayedPipeline& played, const std::string& title);

}  // namespace causeway::plan
