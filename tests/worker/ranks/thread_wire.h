// Ranks that are threads of one process: the test bed of everything above a Wire, with links as slow, and ranks as
// broken, as a test wants them.
//
//   ThreadRanks ranks(4, {.bytes_per_s = 1e9});     ranks.wire(2) for the thread that plays rank 2
//   ranks.End(3)    as if rank 3 had been killed: its transfers fail at once, on all ranks
//   ranks.Hang(3)   as if it had been stopped: its sends no longer arrive, and nothing fails
//
// Thread-safe.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "core/clock.h"
#include "core/mutex.h"
#include "worker/ranks/wire.h"

namespace causeway::worker {

// The figures of each rank's link. 0 bytes_per_s: as fast as memory.
struct ThreadLinks {
  double latency_s = 0;
  double bytes_per_s = 0;
  std::function<double(int from, int to)> bytes_per_s_between = nullptr;  // replaces it, for each pair
};

class ThreadRanks {
 public:
  explicit ThreadRanks(int world, ThreadLinks links = {});

  std::shared_ptr<Wire> wire(int rank);
  void End(int rank);
  void Hang(int rank);

 private:
  class RankWire;
  class RankTransfer;
  struct Hub;

  const std::shared_ptr<Hub> hub_;  // wires may outlive this object
};

}  // namespace causeway::worker
