// Which rank of its site a process is, and where the ranks meet.
//
//   --rank, --world, --rendezvous      win over everything; --nproc=N gives them to each of its processes
//   RANK, WORLD_SIZE, MASTER_*         torchrun
//   SLURM_PROCID, SLURM_NTASKS         in a step of srun (SLURM_STEP_NODELIST): the step's first host
//   OMPI_COMM_WORLD_RANK, _SIZE        Open MPI; MASTER_* say where, unless all are on one host
//
// None of them: a site of one rank. Two that differ are refused, because one of them is not what was meant.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace causeway::worker {

inline constexpr int kMostRanks = 1024;  // of a site: each is connected to each other one

struct RankPlace {
  int rank = 0;
  int world = 1;
  std::string rendezvous;  // HOST:PORT or unix:PATH; "": a world of one
  std::string source;      // what says so: "RANK, WORLD_SIZE"
};

struct RankFlags {
  int rank = -1;  // −1: not given
  int world = -1;
  std::string rendezvous;
};

// A variable of the environment; none where it is not set.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;
std::optional<std::string> ProcessEnvironment(const std::string& name);

// INVALID_ARGUMENT: what was expected, what came, and from where.
absl::StatusOr<RankPlace> ReadRankPlace(const RankFlags& flags, const Environment& environment);

// Which of this host's ranks the process is: LOCAL_RANK (torchrun, --nproc), SLURM_LOCALID, OMPI_COMM_WORLD_LOCAL_RANK;
// 0 where none is set. A rank takes the GPU of that number.
int ReadLocalRank(const Environment& environment);

// The first host of Slurm's "node[03-05,9],other".
std::string FirstHost(const std::string& node_list);

}  // namespace causeway::worker
