#include "worker/parallel/pipeline_executor.h"

#include "core/check.h"
#include "core/clock.h"

namespace causeway::worker {
namespace {

absl::Status Run(const plan::Operation& operation, StageTensors& tensors, StageRunner& runner,
                 std::span<const float> input, std::span<float> output) {
  using Kind = plan::OperationKind;
  switch (operation.kind) {
    case Kind::kForward: runner.Forward(operation, input, output); break;
    case Kind::kBackward: runner.Backward(operation, input, output); break;
    case Kind::kInput: runner.BackwardInput(operation, input, output); break;
    case Kind::kWeight: runner.BackwardWeight(operation); break;
    case Kind::kGather: return tensors.Gather(operation.stage);
    case Kind::kRelease: return tensors.Release(operation.stage);
    case Kind::kReduce: tensors.Reduce(operation.stage); break;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunPipelineStep(const PipelineProgram& program, PipelineLinks& links, StageTensors& tensors,
                             StageRunner& runner, std::vector<PipelineSpan>& spans) {
  const core::Clock::TimePoint start = core::SystemClock().Now();
  links.Begin();
  for (const PipelineStep& step : program.steps) {
    std::span<const float> input;
    if (step.input) {
      ASSIGN_OR_RETURN(input, links.Receive(*step.input));
    }
    const double begin_s = core::SystemClock().SecondsSince(start);
    RETURN_IF_ERROR(
        Run(step.operation, tensors, runner, input, step.output ? links.Buffer(*step.output) : std::span<float>()));
    if (step.input) links.Release(*step.input);
    if (step.output) links.Send(*step.output);
    spans.push_back({step.operation, begin_s, core::SystemClock().SecondsSince(start)});
  }
  return links.Finish();
}

}  // namespace causeway::worker
