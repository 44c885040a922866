// A simulated pipeline schedule as a drawing: a row per device, a bar per operation, as long as it takes; a measured
// one below it, on the same scale. Pure.
#pragma once

#include <string>

#include "plan/pipeline_time.h"

namespace causeway::plan {

// An SVG document. `title` is above; F is blue, B and I are orange, W is green, pairs are purple, the second copy is
// darker; a bar that is wide enough has its stage and micro-batch.
// Where `measured` is not null `title` ends with the two step times.
std::string PipelineSvg(const PipelineSchedule& schedule, const PlayedPipeline& played, const std::string& title,
                        const PlayedPipeline* measured = nullptr);

}  // namespace causeway::plan
