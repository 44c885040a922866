// How long this process stood still between two ticks: leases do not run meanwhile. One owner at a time.
#pragma once

#include <cstdint>

#include "server/run/run_parts.h"

namespace causeway::server {

class StallWatch {
 public:
  // `started_ms`: of the monotonic clock. A tick later than a quarter of a lease is late.
  StallWatch(int64_t started_ms, int64_t lease_ms) : ticked_ms_(started_ms), lease_ms_(lease_ms) {}

  void Tick(int64_t now_ms, RunParts& run);

 private:
  bool ticked_ = false;  // a start may take minutes
  int64_t ticked_ms_;
  const int64_t lease_ms_;
};

}  // namespace causeway::server
