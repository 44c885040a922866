// The speeds of this machine that matter to a step, measured in about a second: a worker that traces its work records
// them beside the amounts (plan/what_if.h).
//
// Takes the best of several passes: other load on the machine only makes them slower. Blocks its caller.
#pragma once

namespace causeway::worker {

struct MachineSpeeds {
  double flops = 0;  // of a matrix product, float32, by the threads of BLAS
  // Bytes a second that one thread reads out of arrays of 256 KiB, 8 MiB and 256 MiB.
  double l2 = 0, l3 = 0, dram = 0;
};

MachineSpeeds MeasureMachine();

}  // namespace causeway::worker
