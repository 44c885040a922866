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
#include <string_view>

#include "absl/status/statusor.h"
#include "core/environment.h"

namespace causeway::worker {

inline constexpr int kMostRanks = 1024;  // most ranks of a site: each is connected to each other one

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

// The secret that the ranks of a site share, and show each other without telling it: only a process that knows it
// counts as a rank.
//
//   CAUSEWAY_RENDEZVOUS_KEY   16 characters or more, the same for all ranks; --nproc makes one for its processes
//   --rendezvous_key_file     a file with it, which takes precedence
//
// Constant; thread-safe.
inline constexpr char kRankKeyVariable[] = "CAUSEWAY_RENDEZVOUS_KEY";

class RankKey {
 public:
  RankKey() = default;  // none: anyone who can connect is believed
  explicit RankKey(std::string secret) : secret_(std::move(secret)) {}

  bool is_given() const { return !secret_.empty(); }
  // HMAC-SHA256 of `role`, which says who proves, and `challenge`: 32 bytes.
  std::string Prove(std::string_view role, std::string_view challenge) const;
  bool IsProven(std::string_view role, std::string_view challenge, std::string_view proof) const;

 private:
  std::string secret_;
};

std::string NewRankSecret();  // 32 hexadecimal digits
std::string NewNonce();       // 16 random bytes

// INVALID_ARGUMENT: the file cannot be read, the key is too short, with its source, or there is none, though other
// hosts reach the rendezvous; `insecure` allows that.
absl::StatusOr<RankKey> ReadRankKey(const std::string& key_file, const RankPlace& place, bool insecure,
                                    const core::Environment& environment);

}  // namespace causeway::worker
