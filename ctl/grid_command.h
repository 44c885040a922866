// causewayctl plan pipeline --ranks=R --levels=FILE --batch=B --costs=FILE[,FILE…]: how many ranks to give to tensor,
// pipeline and data parallelism. Called from one thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "plan/parallel_grid.h"

namespace causeway::ctl {

bool GridIsAsked();  // --ranks was given

// Reads the flags and files of this command. INVALID_ARGUMENT names the flag, or the place in a file.
absl::Status RunGridCommand(bool json, const std::vector<std::string>& costs_paths, double memory_bytes);

// The best five, and the best without tensor parallelism where none of them is, which native sites do not have; what
// the best has less of than the next. `rows`: the best first.
std::string GridText(const plan::GridInput& input, const std::vector<plan::GridRow>& rows);
std::string GridJson(const std::vector<plan::GridRow>& rows);  // a line for each of the best five

}  // namespace causeway::ctl
