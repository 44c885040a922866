// The times of a pipeline's operations, as a file in Chrome's trace-event format, which browsers open.
//
//   each rank's spans of a step ─► gathered at rank 0 ─► [{"name": "0F1", "ts": µs, "dur": µs, "tid": device, …}, …
//
// Steps begin with a barrier while they are traced, so that the ranks' clocks need not agree. Only the first steps are
// traced. One owner thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/schedule.h"
#include "worker/parallel/pipeline_executor.h"
#include "worker/parallel/pipeline_program.h"
#include "worker/parallel/trace_file.h"
#include "worker/ranks/rank_steps.h"

namespace causeway::worker {

class PipelineTrace {
 public:
  // Null if the path is empty. Every rank calls it with the same path. UNAVAILABLE: rank 0 cannot write the file.
  static absl::StatusOr<std::unique_ptr<PipelineTrace>> Open(const std::string& path, const TrainerRanks& ranks,
                                                             const PipelinePrograms& programs, int width);

  // Every rank calls both of them in each step.
  absl::Status Begin();
  absl::Status Write(core::Step step, const std::vector<PipelineSpan>& spans);

 private:
  PipelineTrace(const TrainerRanks& ranks, const PipelinePrograms& programs, int width)
      : ranks_(ranks), programs_(programs), width_(width) {}
  bool over() const { return written_ == TraceFile::kSteps; }

  const TrainerRanks ranks_;
  const PipelinePrograms& programs_;
  const int width_;
  std::unique_ptr<TraceFile> file_;  // rank 0's
  int written_ = 0;
  double begin_s_ = 0;  // where the current step begins in the file
};

}  // namespace causeway::worker
