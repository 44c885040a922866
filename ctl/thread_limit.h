// Whether this process may start the threads that it needs. Without them it would end, or wait for ever, somewhere in a
// library, and say nothing of the limit.
#pragma once

#include "absl/status/status.h"

namespace causeway::ctl {

// Starts the program's `own` threads and as many as gRPC has, all at once, and ends them. RESOURCE_EXHAUSTED names the
// number that could be started, and the limits that are set: `ulimit -u` and the control group's pids.max.
absl::Status CheckThreads(int own);

// Connections are descriptors: raises the limit to the maximum that the administrator allows.
void RaiseDescriptorLimit();

}  // namespace causeway::ctl
