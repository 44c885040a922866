// causeway-worker --nproc=N: the ranks of a site on one machine, as processes of the same program.
//
//   launcher ─┬─► rank 0 --rank=0 --world=N --rendezvous=unix:…     its share of the cores
//             ├─► rank 1 …                                          signals to stop go to all
//             └─► …           one fails ─► the others get a while to end by themselves, then SIGKILL
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace causeway::worker {

struct LaunchOptions {
  int ranks = 1;
  std::vector<std::string> arguments;  // the program's own, without --nproc
  bool bind = true;                    // each rank to its share of this process's cores
  double grace_s = 10;                 // between a rank's failure and the forced end of the others
};

// Runs until all ranks have ended. Returns the exit code: 0 if all have returned 0, else that of the first that did not
// (128 + n after signal n). `stop_signal(timeout_ms)` waits up to that long for a request to stop: true if one came.
int LaunchRanks(const LaunchOptions& options, const std::function<bool(int64_t timeout_ms)>& stop_signal);

// The share of `cores` (of this process) for rank `rank` of `ranks`: equal shares, at least one core each.
std::vector<int> ShareOfCores(const std::vector<int>& cores, int rank, int ranks);

// Ends the reason that rank 0 gives the other ranks for its end, if its log has said more.
inline constexpr char kWhyIsInItsLog[] = ", and why is in its log";

// Whether a rank that the same launcher has started says this already, as far as `rendezvous` is a launcher's: the
// ranks share a terminal, and what is wrong with a flag or a file is wrong for all of them. Records it if not.
bool AnotherRankSays(const std::string& rendezvous, const std::string& reason);

}  // namespace causeway::worker
