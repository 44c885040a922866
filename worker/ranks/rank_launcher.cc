#include "worker/ranks/rank_launcher.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/prctl.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/clock.h"
#include "core/environment.h"
#include "worker/ranks/rank_place.h"

namespace causeway::worker {
namespace {

constexpr int64_t kPollMs = 50;
constexpr int kCannotStart = 127;
constexpr int kLargestExitCode = 5;  // of a program that has said in its log why it ends
constexpr char kFolder[] = "causeway-ranks-";
constexpr char kMeetingPlace[] = "/rendezvous";

std::vector<int> OwnCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

void BindTo(const std::vector<int>& cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) CPU_SET(core, &set);
  sched_setaffinity(0, sizeof(set), &set);
}

// Starts one process; the launcher has one thread, so the child may do more than exec.
pid_t Start(const LaunchOptions& options, int rank, const std::string& rendezvous, const std::vector<int>& cores) {
  std::vector<std::string> arguments = options.arguments;
  arguments.push_back(absl::StrCat("--rank=", rank));
  arguments.push_back(absl::StrCat("--world=", options.ranks));
  arguments.push_back(absl::StrCat("--rendezvous=", rendezvous));
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const pid_t launcher = getpid();
  const pid_t child = fork();
  if (child != 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGTERM);  // in case the launcher is killed
  if (getppid() != launcher) _exit(kCannotStart);
  if (!cores.empty()) BindTo(cores);
  setenv("LOCAL_RANK", std::to_string(rank).c_str(), /*overwrite=*/1);  // the GPU that it takes
  execv("/proc/self/exe", argv.data());
  std::fprintf(stderr, "rank %d cannot be started: %s\n", rank, std::strerror(errno));
  _exit(kCannotStart);
}

struct Ended {
  int rank = 0;
  int code = 0;
  std::string how;
};

std::optional<Ended> NextEnded(std::vector<pid_t>& ranks) {
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    int status = 0;
    if (ranks[rank] <= 0 || waitpid(ranks[rank], &status, WNOHANG) != ranks[rank]) continue;
    ranks[rank] = 0;
    if (WIFSIGNALED(status)) {
      const int number = WTERMSIG(status);
      return Ended{static_cast<int>(rank), 128 + number,
                   absl::StrCat("by signal ", number, " (", strsignal(number), ")")};
    }
    return Ended{static_cast<int>(rank), WEXITSTATUS(status), absl::StrCat("with ", WEXITSTATUS(status))};
  }
  return std::nullopt;
}

void SignalAll(const std::vector<pid_t>& ranks, int number) {
  for (const pid_t rank : ranks) {
    if (rank > 0) kill(rank, number);
  }
}

}  // namespace

std::vector<int> ShareOfCores(const std::vector<int>& cores, int rank, int ranks) {
  const int count = static_cast<int>(cores.size());
  if (count == 0) return {};
  if (count < ranks) return {cores[rank % count]};
  return {cores.begin() + count * rank / ranks, cores.begin() + count * (rank + 1) / ranks};
}

int LaunchRanks(const LaunchOptions& options, const std::function<bool(int64_t timeout_ms)>& stop_signal) {
  const absl::StatusOr<std::string> temporary = core::FolderForTemporaryFiles();
  std::string folder = absl::StrCat(temporary.value_or(""), "/", kFolder, "XXXXXX");
  const size_t bytes = folder.size() + std::strlen(kMeetingPlace), most = sizeof(sockaddr_un::sun_path) - 1;
  if (!temporary.ok() || bytes > most) {
    spdlog::error("--nproc: {}", temporary.ok()
                                     ? absl::StrCat("expected a TMPDIR of at most ", most - bytes + temporary->size(),
                                                    " characters, for the address of the ranks' socket has at most ",
                                                    most, ", got ", *temporary)
                                     : std::string(temporary.status().message()));
    return 1;
  }
  if (mkdtemp(folder.data()) == nullptr) {
    spdlog::error("--nproc: expected to write to {}, got: {}", folder, std::strerror(errno));
    return 1;
  }
  setenv(kRankKeyVariable, NewRankSecret().c_str(), /*overwrite=*/0);
  const std::vector<int> cores = OwnCores();
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < options.ranks; ++rank) {
    const std::vector<int> share = options.bind ? ShareOfCores(cores, rank, options.ranks) : std::vector<int>();
    ranks.push_back(Start(options, rank, absl::StrCat("unix:", folder, kMeetingPlace), share));
  }
  int code = 0;
  std::optional<core::Clock::TimePoint> failed;
  bool killed = false;
  while (std::ranges::any_of(ranks, [](pid_t rank) { return rank > 0; })) {
    if (stop_signal(kPollMs)) SignalAll(ranks, SIGTERM);
    while (const std::optional<Ended> ended = NextEnded(ranks)) {
      if (ended->code == 0) continue;
      if (code == 0) code = ended->code;
      if (!failed) failed = core::SystemClock().Now();
      if (ended->code <= kLargestExitCode) continue;
      spdlog::error("rank {} of {} has ended {}", ended->rank, options.ranks, ended->how);
    }
    if (failed && !killed && core::SystemClock().SecondsSince(*failed) > options.grace_s) {
      killed = true;
      spdlog::error("the other ranks have not ended within {:.0f} s, and are killed", options.grace_s);
      SignalAll(ranks, SIGKILL);
    }
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  return code;
}

bool AnotherRankSays(const std::string& rendezvous, const std::string& reason) {
  absl::string_view folder = rendezvous;
  if (!absl::ConsumePrefix(&folder, "unix:") || !absl::ConsumeSuffix(&folder, kMeetingPlace)) return false;
  if (!absl::StartsWith(folder.substr(folder.rfind('/') + 1), kFolder)) return false;
  if (absl::EndsWith(reason, kWhyIsInItsLog)) return true;
  const std::string record = absl::StrCat(folder, "/said-", std::hash<std::string>()(reason));
  const int file = open(record.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) return errno == EEXIST;
  close(file);
  return false;
}

}  // namespace causeway::worker
