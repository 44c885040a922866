#include "worker/ranks/rank_place.h"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <functional>
#include <optional>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/address.h"
#include "core/check.h"
#include "core/digest.h"
#include "core/random.h"
#include "core/text.h"
#include "formats/named_file.h"

namespace causeway::worker {
namespace {

constexpr size_t kLeastCharacters = 16, kMostCharacters = 4096;

bool OthersReach(const RankPlace& place) {
  if (place.world == 1 || place.rendezvous.starts_with("unix:")) return false;
  const absl::StatusOr<core::Address> address = core::ParseAddress("--rendezvous", place.rendezvous);
  return !address.ok() || !address->IsLoopback();
}

constexpr int kFirstPort = 20000;  // for Slurm steps, which name none: below Linux's ephemeral ports
constexpr int kPorts = 10000;
constexpr int kDefaultPort = 29500;  // as torchrun's

// The variables of a launcher, and where its ranks meet.
struct Launcher {
  std::string rank_name, world_name;
  std::function<absl::StatusOr<std::string>(const Environment&)> rendezvous;
};

absl::StatusOr<int> Number(const Environment& environment, const std::string& name) {
  const std::string text = environment(name).value_or("");
  int number = 0;
  if (absl::SimpleAtoi(text, &number) && number >= 0) return number;
  return absl::InvalidArgumentError(absl::StrCat(name, ": expected a number of 0 or more, got ", core::Quoted(text)));
}

absl::StatusOr<std::string> MasterAddress(const Environment& environment) {
  std::string host = environment("MASTER_ADDR").value_or("");
  if (host.empty()) {
    return absl::InvalidArgumentError(
        "MASTER_ADDR: expected the host of rank 0, got none: set it, or --rendezvous=HOST:PORT");
  }
  if (host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  if (!environment("MASTER_PORT")) return core::Address{host, kDefaultPort}.Text();
  ASSIGN_OR_RETURN(const int port, Number(environment, "MASTER_PORT"));
  // torchrun's agent itself listens at that port.
  return core::Address{host, port + (environment("TORCHELASTIC_USE_AGENT_STORE") == "True" ? 1 : 0)}.Text();
}

absl::StatusOr<std::string> SlurmAddress(const Environment& environment) {
  int64_t job = 0, step = 0;
  (void)absl::SimpleAtoi(environment("SLURM_JOB_ID").value_or(""), &job);
  (void)absl::SimpleAtoi(environment("SLURM_STEP_ID").value_or(""), &step);
  return core::Address{FirstHost(*environment("SLURM_STEP_NODELIST")),
                       kFirstPort + static_cast<int>((job * 31 + step) % kPorts)}
      .Text();
}

// Where no other user puts a socket of that name first: each rank makes the folder, or finds what another one has made.
absl::StatusOr<std::string> FolderOfUser(const std::string& parent) {
  const std::string folder = absl::StrCat(parent, "/causeway-", geteuid());
  struct stat made = {};
  if ((mkdir(folder.c_str(), S_IRWXU) != 0 && errno != EEXIST) || lstat(folder.c_str(), &made) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("cannot create folder ", folder, ", in which the ranks meet: ",
                                                   std::strerror(errno), "; set TMPDIR, or --rendezvous=HOST:PORT"));
  }
  if (S_ISDIR(made.st_mode) && made.st_uid == geteuid() && (made.st_mode & (S_IRWXG | S_IRWXO)) == 0) return folder;
  return absl::InvalidArgumentError(absl::StrCat(
      folder, ", in which the ranks meet: expected a folder of this user that no other one may enter, got ",
      S_ISDIR(made.st_mode) ? "one" : "something else", " of user ", made.st_uid, " with mode ",
      absl::StrFormat("%04o", made.st_mode & 07777), "; remove it, set TMPDIR, or --rendezvous=HOST:PORT"));
}

absl::StatusOr<std::string> OpenMpiAddress(const Environment& environment) {
  if (environment("OMPI_COMM_WORLD_LOCAL_SIZE") != environment("OMPI_COMM_WORLD_SIZE") ||
      environment("MASTER_ADDR").has_value()) {
    return MasterAddress(environment);
  }
  ASSIGN_OR_RETURN(const std::string folder, FolderOfUser(environment("TMPDIR").value_or("/tmp")));
  const std::string job = environment("PMIX_NAMESPACE").value_or(environment("OMPI_MCA_ess_base_jobid").value_or("0"));
  return absl::StrCat("unix:", folder, "/ranks-", job);
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

// How many ranks the launcher has started. SLURM_NTASKS is that of the job where salloc or a batch script has asked for
// several tasks and a shell of one task (salloc's interactive step, srun --pty) is what starts the program.
absl::StatusOr<int> World(const Launcher& launcher, const Environment& environment, RankPlace& place) {
  ASSIGN_OR_RETURN(const int world, Number(environment, launcher.world_name));
  if (launcher.world_name != "SLURM_NTASKS" || !environment("SLURM_STEP_NUM_TASKS")) return world;
  ASSIGN_OR_RETURN(const int of_step, Number(environment, "SLURM_STEP_NUM_TASKS"));
  if (of_step != world) {
    place.note =
        absl::StrCat("this step of Slurm has ", of_step, of_step == 1 ? " task" : " tasks", " of the job's ", world,
                     " (SLURM_STEP_NUM_TASKS, SLURM_NTASKS), and the site as many ranks; srun "
                     "starts more");
  }
  return of_step;
}

// The address as all that use it expect it.
absl::StatusOr<std::string> RendezvousOf(const std::string& source, const std::string& text) {
  if (text.starts_with("unix:")) return text;
  const absl::StatusOr<core::Address> address = core::ParseAddress(source, text);
  if (!address.ok()) return absl::InvalidArgumentError(absl::StrCat(address.status().message(), "; or unix:PATH"));
  return address->Text();
}

absl::StatusOr<RankPlace> Check(RankPlace place) {
  if (place.world < 1 || place.rank >= place.world) {
    return absl::InvalidArgumentError(absl::StrCat(place.source, ": expected a rank below the world's size, got rank ",
                                                   place.rank, " of ", place.world));
  }
  return place;
}

}  // namespace

std::string RankKey::Prove(std::string_view role, std::string_view challenge) const {
  return core::KeyedProof(secret_, absl::StrCat(std::string(role), " ", std::string(challenge)));
}

bool RankKey::IsProven(std::string_view role, std::string_view challenge, std::string_view proof) const {
  return core::SameSecret(proof, Prove(role, challenge));
}

std::string NewNonce() {
  const std::array<uint64_t, 2> words = {core::DeviceRandom(), core::DeviceRandom()};
  return std::string(reinterpret_cast<const char*>(words.data()), sizeof(words));
}

std::string NewRankSecret() { return absl::BytesToHexString(NewNonce()); }

absl::StatusOr<RankKey> ReadRankKey(const std::string& key_file, const RankPlace& place, bool insecure,
                                    const core::Environment& environment) {
  std::string source = kRankKeyVariable;
  std::optional<std::string> text = environment(kRankKeyVariable);
  if (!key_file.empty()) {
    source = "--rendezvous_key_file=" + key_file;
    ASSIGN_OR_RETURN(text, formats::ReadNamedFile("rendezvous_key_file", key_file));
  }
  if (text) {
    const std::string secret(absl::StripAsciiWhitespace(*text));
    if (secret.size() >= kLeastCharacters && secret.size() <= kMostCharacters) return RankKey(secret);
    return absl::InvalidArgumentError(absl::StrCat(source, ": expected a key of ", kLeastCharacters, " to ",
                                                   kMostCharacters, " characters, got ", secret.size(),
                                                   "; `openssl rand -hex 16` makes one"));
  }
  if (insecure || !OthersReach(place)) return RankKey();
  return absl::InvalidArgumentError(absl::StrCat("the ranks meet at ", place.rendezvous,
                                                 ", which other hosts reach: expected a key that they share, got none; "
                                                 "export ",
                                                 kRankKeyVariable,
                                                 "=$(openssl rand -hex 16) before the launcher starts them, give all "
                                                 "of them one --rendezvous_key_file, or say --insecure"));
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
    RankPlace place{flags.rank, flags.world, flags.rendezvous, "--rank, --world", ""};
    if (flags.world > 1) {
      ASSIGN_OR_RETURN(place.rendezvous, RendezvousOf("--rendezvous", flags.rendezvous));
    }
    return Check(std::move(place));
  }
  std::optional<RankPlace> place;
  for (const Launcher& launcher : Launchers()) {
    if (!IsSet(launcher, environment)) continue;
    ASSIGN_OR_RETURN(const int rank, Number(environment, launcher.rank_name));
    RankPlace found;
    ASSIGN_OR_RETURN(const int world, World(launcher, environment, found));
    const std::string source = launcher.rank_name + ", " + launcher.world_name;
    if (place && (place->rank != rank || place->world != world)) {
      return absl::InvalidArgumentError(
          absl::StrCat("expected one launcher, or several that agree, got rank ", place->rank, " of ", place->world,
                       " (", place->source, ") and rank ", rank, " of ", world, " (", source,
                       "): unset the variables of the outer one, or give --rank, --world and --rendezvous"));
    }
    if (place) continue;
    if (world > 1 && !flags.rendezvous.empty()) {
      ASSIGN_OR_RETURN(found.rendezvous, RendezvousOf("--rendezvous", flags.rendezvous));
    } else if (world > 1) {
      ASSIGN_OR_RETURN(const std::string rendezvous, launcher.rendezvous(environment));
      ASSIGN_OR_RETURN(found.rendezvous, RendezvousOf("the ranks' meeting place", rendezvous));
    }
    ASSIGN_OR_RETURN(place, Check({rank, world, found.rendezvous, source, found.note}));
  }
  return place.value_or(RankPlace());
}

}  // namespace causeway::worker
