#include "worker/parallel/pipeline_trace.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "core/check.h"
#include "core/ids.h"

namespace causeway::worker {

absl::StatusOr<std::unique_ptr<PipelineTrace>> PipelineTrace::Open(const std::string& path, const TrainerRanks& ranks,
                                                                   const PipelinePrograms& programs, int width) {
  if (path.empty()) return nullptr;
  std::unique_ptr<PipelineTrace> trace(new PipelineTrace(ranks, programs, width));
  if (ranks.rank() > 0) return trace;
  ASSIGN_OR_RETURN(trace->file_, TraceFile::Open(path));
  return trace;
}

absl::Status PipelineTrace::Begin() {
  if (over() || ranks_.world() == 1) return absl::OkStatus();
  return ranks_.values->Await(ranks_.values->Barrier(), ranks_.timeout());
}

absl::Status PipelineTrace::Write(core::Step step, const std::vector<PipelineSpan>& spans) {
  if (over()) return absl::OkStatus();
  size_t most = 0;
  for (const PipelineProgram& program : programs_.devices) most = std::max(most, program.steps.size());
  std::vector<double> mine(2 * most), all(mine.size() * static_cast<size_t>(ranks_.world()));
  for (size_t i = 0; i < spans.size(); ++i) {
    mine[2 * i] = spans[i].begin_s;
    mine[2 * i + 1] = spans[i].end_s;
  }
  if (ranks_.world() == 1) {
    all = mine;
  } else {
    const Collectives::Ticket ticket =
        ranks_.values->AllGather(BytesOf(std::span<const double>(mine)), BytesOf(std::span(all)));
    RETURN_IF_ERROR(ranks_.values->Await(ticket, ranks_.timeout()));
  }
  ++written_;
  if (file_ == nullptr) return absl::OkStatus();
  double end_s = 0;
  for (int rank = 0; rank < ranks_.world(); ++rank) {
    const auto& steps = programs_.devices[static_cast<size_t>(rank / width_)].steps;
    for (size_t i = 0; i < steps.size(); ++i) {
      const double* const at = &all[static_cast<size_t>(rank) * mine.size() + 2 * i];
      end_s = std::max(end_s, at[1]);
      const std::string name = plan::OperationText(steps[i].operation);
      file_->Add(absl::StrFormat(
          "{\"name\": \"%s\", \"cat\": \"%c\", \"ph\": \"X\", \"ts\": %.1f, \"dur\": %.1f, \"pid\": %d, "
          "\"tid\": %d, \"args\": {\"step\": %d}}",
          name, plan::kOperationLetters[static_cast<int>(steps[i].operation.kind)], 1e6 * (begin_s_ + at[0]),
          1e6 * (at[1] - at[0]), rank % width_, rank / width_, step));
    }
  }
  file_->Flush();
  begin_s_ += end_s;
  return absl::OkStatus();
}

}  // namespace causeway::worker
