// causewayctl plan pipeline and its flags: one schedule's times, rules and file.
//
//   --schedule=NAME --devices=D --micro_batches=N [--chunks=V] [--unit=U] [--late_sync]    of a generator
//   --check=FILE                                                                           of a file
//   --costs=FILE --devices=D --micro_batches=N [--memory_gb=GB]    the best for measured costs
//   --ranks=R …                                                    GridCommand
//   [--latency=UNITS] [--out=FILE] [--torch_csv=FILE] [--json]
//
// Costs are units: the forward of 1/D of the model lasts one, a backward two. Called from one thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plan/parallel_grid.h"
#include "plan/pipeline_schedule.h"

namespace causeway::ctl {

// causewayctl plan pipeline --ranks=R --levels=FILE --batch=B --costs=FILE[,FILE…]: how many ranks to give to tensor,
// pipeline and data parallelism. Called from one thread.

bool GridIsAsked();  // --ranks was given

// Reads the flags and files of this command. INVALID_ARGUMENT names the flag, or the place in a file.
absl::Status RunGridCommand(bool json, const std::vector<std::string>& costs_paths, double memory_bytes);

// Shows the best five rows; also the best row without tensor parallelism, which native sites do not have, if it is not
// among these; and the figures in which the best is below the next. `rows`: the best first.
std::string GridText(const plan::GridInput& input, const std::vector<plan::GridRow>& rows);
std::string GridJson(const std::vector<plan::GridRow>& rows);  // a line for each of the best five

// One JSON object: schedule, D, N, stages, cost, overlap, makespan, bubble, span_bubble, peak_chunks, slots, messages,
// order of F, B, I, W and pairs ("F0@3/1+B1@0/0": micro-batch @ stage / copy), sync of G, R and A. Times are fractions
// of units, as text.
absl::StatusOr<std::string> PipelineJson(const std::string& name, const plan::PipelineSchedule& schedule,
                                         double latency_units);

// Prints to stdout, and writes the schedule to the file `out` unless it is empty. INVALID_ARGUMENT names the flag or
// the place in the file.
absl::Status RunPipelineCommand(bool json, const std::string& out);

}  // namespace causeway::ctl
