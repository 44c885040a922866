// A run at its coordinator, as a function: what it hears of, and what is to be stored and sent of that.
//
//   Input, now ─► Handle ─► Ready {entry, effects}
//
// It calls no peer and commits nothing. One owner at a time.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "server/run/run_parts.h"

namespace causeway::server {

class Run {
 public:
  // The arguments outlive this object.
  Run(const RunOptions& options, Journal& journal, RunFigures& figures, DurableFacts& durable,
      RunModel::Listeners listeners)
      : parts_(options, journal, figures, durable, std::move(listeners)) {}

  // Restore: begins as an earlier life has left the run, or as a new run. RestoreFragments: then, if there are
  // parameters, restores the fragments. DATA_LOSS if the stored state is inconsistent.
  absl::StatusOr<Ready> Restore(const StoredRun& stored, int64_t now_ms);
  absl::Status RestoreFragments(const std::vector<StoredFragment>& stored, int64_t now_ms);

  // A refused input (`Ready::status`) may leave something, too: the note of a caller that another coordinator welcomed.
  Ready Handle(const Input& input, int64_t now_ms);

  const RunParts& View() const { return parts_; }
  void EndModel() { parts_.model.End(); }

 private:
  Ready TakeReady();

  RunParts parts_;
};

}  // namespace causeway::server
