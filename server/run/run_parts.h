// The parts of a run that an event may change, under the lock of the exchange.
#pragma once

#include "server/rounds/run_rules.h"
#include "server/run/members.h"
#include "server/run/ready.h"

namespace causeway::server {

struct RunParts {
  RunRules& rules;
  Members& members;
  Ready& ready;
};

}  // namespace causeway::server
