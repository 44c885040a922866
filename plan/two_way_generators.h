// The generators of schedules with two copies of the weights, one for each direction (plan/pipeline_generators.h, which
// checks the numbers).
#pragma once

#include "plan/pipeline_schedule.h"

namespace causeway::plan {

struct GeneratorInput;

PipelineSchedule DualPipe(const GeneratorInput& input);
PipelineSchedule BitPipe(const GeneratorInput& input);

}  // namespace causeway::plan
