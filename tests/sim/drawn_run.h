// The settings of a simulated run, and its model, by chance.
#pragma once

#include "core/run_config.h"
#include "tests/sim/machine.h"

namespace causeway::sim {

struct DrawnRun {
  core::RunConfig config;
  core::SyntheticConfig model;
  int shards = 1;
};

core::SyntheticConfig DrawModel(Chance& chance);
DrawnRun DrawRun(Chance& chance);

}  // namespace causeway::sim
