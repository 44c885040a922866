// A process's rank in its site, and the place where the ranks meet.
//
//   --rank, --world, --rendezvous      take precedence; --nproc=N sets them for each of its processes
//   RANK, WORLD_SIZE, MASTER_*         torchrun
//   SLURM_PROCID, SLURM_NTASKS         in a step of srun (SLURM_STEP_NODELIST): the step's first host;
//                                      SLURM_STEP_NUM_TASKS says how many tasks the step itself has
//   OMPI_COMM_WORLD_RANK, _SIZE        Open MPI; MASTER_* give the place, unless all are on one host
//
// None of them: a site of one rank. Two that differ are refused, because one of them must be a mistake.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "core/environment.h"

namespace causeway::worker {

inline constexpr int kMostRanks = 1024;  // of a site: each is connected to each other one

struct RankPlace {
  int rank = 0;
  int world = 1;
  std::string rendezvous;  // HOST:PORT or unix:PATH; "": a world of one
  std::string source;      // the source of these: "RANK, WORLD_SIZE"
  std::string note;        // what may surprise about them; ""
};

struct RankFlags {
  int rank = -1;  // −1: not given
  int world = -1;
  std::string rendezvous;
};

using core::Environment;

// INVALID_ARGUMENT gives the expected and the actual value, and its source.
absl::StatusOr<RankPlace> ReadRankPlace(const RankFlags& flags, const Environment& environment);

// The process's number among this host's ranks: LOCAL_RANK (torchrun, --nproc), SLURM_LOCALID,
// OMPI_COMM_WORLD_LOCAL_RANK; 0 if none is set. A rank takes the GPU of that number where it sees several.
int ReadLocalRank(const Environment& environment);

// The first host of Slurm's "node[03-05,9],other".
std::string FirstHost(const std::string& node_list);

}  // namespace causeway::worker
