// Runs one step of a pipeline on one of its devices.
//
//   F, B, I, W   its message ─► the runner computes ─► its message is sent, in parallel with what follows
//   G, R, A      the stage's tensors are gathered, released, reduced
//
// One owner thread, which computes.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "worker/parallel/pipeline_links.h"
#include "worker/parallel/pipeline_program.h"
#include "worker/parallel/sharded_tensors.h"
#include "worker/parallel/stage_runner.h"

namespace causeway::worker {

// When an operation began and ended, in seconds of core::SystemClock since the step began; its message has arrived by
// `begin_s`.
struct PipelineSpan {
  plan::Operation operation;
  double begin_s = 0, end_s = 0;
};

// Errors of the links and of the tensors: a rank that was lost, or is silent. `spans`: the measured times.
absl::Status RunPipelineStep(const PipelineProgram& program, PipelineLinks& links, StageTensors& tensors,
                             StageRunner& runner, std::vector<PipelineSpan>& spans);

}  // namespace causeway::worker
