#include "worker/ranks/rank_place.h"

#include <cstdlib>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/check.h"

namespace causeway::worker {
namespace {

constexpr int kFirstPort = 20000;  // for Slurm steps, which name none: below Linux's ephemeral ports
constexpr int kPorts = 10000;
constexpr char kDefaultPort[] = "29500";  // as torchrun's

// The variables of a launcher, and where its ranks meet.
struct Launcher {
  std::string rank_name, world_name;
  std::function<absl::StatusOr<std::string>(const Environment&)> rendezvous;
};

absl::StatusOr<int> Number(const Environment& environment, const std::string& name) {
  const std::string text = environment(name).value_or("");
  int number = 0;
  if (absl::SimpleAtoi(text, &number) && number >= 0) return number;
  return absl::InvalidArgumentError(absl::StrCat(name, ": expected a number of 0 or more, got '", text, "'"));
}

absl::StatusOr<std::string> MasterAddress(const Environment& environment) {
  const std::string host = environment("MASTER_ADDR").value_or("");
  if (host.empty()) {
    return absl::InvalidArgumentError(
        "MASTER_ADDR: expected the host of rank 0, got none: set it, or --rendezvous=HOST:PORT");
  }
  if (!environment("MASTER_PORT")) return absl::StrCat(host, ":", kDefaultPort);
  ASSIGN_OR_RETURN(const int port, Number(environment, "MASTER_PORT"));
  // torchrun's agent itself listens at that port.
  return absl::StrCat(host, ":", port + (environment("TORCHELASTIC_USE_AGENT_STORE") == "True" ? 1 : 0));
}

absl::StatusOr<std::string> SlurmAddress(const Environment& environment) {
  int64_t job = 0, step = 0;
  (void)absl::SimpleAtoi(environment("SLURM_JOB_ID").value_or(""), &job);
  (void)absl::SimpleAtoi(environment("SLURM_STEP_ID").value_or(""), &step);
  return absl::StrCat(FirstHost(*environment("SLURM_STEP_NODELIST")), ":", kFirstPort + (job * 31 + step) % kPorts);
}

absl::StatusOr<std::string> OpenMpiAddress(const Environment& environment) {
  if (environment("OMPI_COMM_WORLD_LOCAL_SIZE") != environment("OMPI_COMM_WORLD_SIZE") ||
      environment("MASTER_ADDR").has_value()) {
    return MasterAddress(environment);
  }
  const std::string folder = environment("TMPDIR").value_or("/tmp");
  const std::string job = environment("PMIX_NAMESPACE").value_or(environment("OMPI_MCA_ess_base_jobid").value_or("0"));
  return absl::StrCat("unix:", folder, "/causeway-ranks-", std::getenv("USER") ? std::getenv("USER") : "", "-", job);
}

const std::vector<Launcher>& Launchers() {
  static const std::vector<Launcher> launchers = {
      {"RANK", "WORLD_SIZE", MasterAddress},
      {"SLURM_PROCID", "SLURM_NTASKS", SlurmAddress},
      {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", OpenMpiAddress},
  };
  return launchers;
}

bool IsSet(const Launcher& launcher, const Environment& environment) {
  if (!environment(launcher.rank_name) || !environment(launcher.world_name)) return false;
  // A batch script also has SLURM_NTASKS, but runs only once.
  return launcher.rank_name != "SLURM_PROCID" || environment("SLURM_STEP_NODELIST").has_value();
}

absl::StatusOr<RankPlace> Check(RankPlace place) {
  if (place.world < 1 || place.rank >= place.world) {
    return absl::InvalidArgumentError(absl::StrCat(place.source, ": expected a rank below the world's size, got rank ",
                                                   place.rank, " of ", place.world));
  }
  return place;
}

}  // namespace

std::optional<std::string> ProcessEnvironment(const std::string& name) {
  const char* const value = std::getenv(name.c_str());
  if (value == nullptr) return std::nullopt;
  return value;
}

std::string FirstHost(const std::string& node_list) {
  const size_t bracket = node_list.find('[');
  const size_t comma = node_list.find(',');
  if (bracket == std::string::npos || comma < bracket) return node_list.substr(0, comma);
  const size_t end = node_list.find_first_of("-,]", bracket);
  return node_list.substr(0, bracket) + node_list.substr(bracket + 1, end - bracket - 1);
}

int ReadLocalRank(const Environment& environment) {
  for (const char* const name : {"LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK"}) {
    int rank = 0;
    const std::optional<std::string> text = environment(name);
    if (text && absl::SimpleAtoi(*text, &rank) && rank >= 0) return rank;
  }
  return 0;
}

absl::StatusOr<RankPlace> ReadRankPlace(const RankFlags& flags, const Environment& environment) {
  if (flags.rank >= 0 || flags.world >= 0) {
    if (flags.rank < 0 || flags.world < 0 || (flags.world > 1 && flags.rendezvous.empty())) {
      return absl::InvalidArgumentError(
          absl::StrCat("--rank, --world, --rendezvous: expected all three, got --rank=", flags.rank,
                       " --world=", flags.world, " --rendezvous=", flags.rendezvous));
    }
    return Check({flags.rank, flags.world, flags.rendezvous, "--rank, --world"});
  }
  std::optional<RankPlace> place;
  for (const Launcher& launcher : Launchers()) {
    if (!IsSet(launcher, environment)) continue;
    ASSIGN_OR_RETURN(const int rank, Number(environment, launcher.rank_name));
    ASSIGN_OR_RETURN(const int world, Number(environment, launcher.world_name));
    const std::string source = launcher.rank_name + ", " + launcher.world_name;
    if (place && (place->rank != rank || place->world != world)) {
      return absl::InvalidArgumentError(
          absl::StrCat("expected one launcher, or several that agree, got rank ", place->rank, " of ", place->world,
                       " (", place->source, ") and rank ", rank, " of ", world, " (", source,
                       "): unset the variables of the outer one, or give --rank, --world and --rendezvous"));
    }
    if (place) continue;
    std::string rendezvous = flags.rendezvous;
    if (world > 1 && rendezvous.empty()) {
      ASSIGN_OR_RETURN(rendezvous, launcher.rendezvous(environment));
    }
    ASSIGN_OR_RETURN(place, Check({rank, world, world > 1 ? rendezvous : "", source}));
  }
  return place.value_or(RankPlace());
}

}  // namespace causeway::worker
