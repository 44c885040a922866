#include "worker/library/host_threads.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>

#include "core/host_limits.h"
#include "core/mutex.h"
#include "core/thread_team.h"

namespace causeway::worker {
namespace {

constexpr int64_t kPiece = int64_t{1} << 16;  // values

// GNU's OpenMP, which PyTorch ships: its entry to a parallel region, and the number of threads the program gave it.
struct OpenMp {
  void (*parallel)(void (*body)(void*), void* data, unsigned threads, unsigned flags) = nullptr;
  int (*max_threads)() = nullptr;
};

int FindLoaded(dl_phdr_info* info, size_t, void* found) {
  const char* const name = std::strrchr(info->dlpi_name, '/');
  if (name == nullptr || std::strncmp(name, "/libgomp", std::strlen("/libgomp")) != 0) return 0;
  *static_cast<std::string*>(found) = info->dlpi_name;
  return 1;
}

OpenMp FindOpenMp() {
  std::string path;
  dl_iterate_phdr(FindLoaded, &path);
  if (path.empty()) return {};
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return {};
  OpenMp omp{reinterpret_cast<decltype(OpenMp::parallel)>(dlsym(library, "GOMP_parallel")),
             reinterpret_cast<decltype(OpenMp::max_threads)>(dlsym(library, "omp_get_max_threads"))};
  return omp.parallel == nullptr || omp.max_threads == nullptr ? OpenMp{} : omp;
}

struct Job {
  const int64_t values;
  const absl::FunctionRef<void(int64_t first, int64_t count)> work;
  std::atomic<int64_t> next = 0;

  void Run() {
    for (int64_t first; (first = next.fetch_add(kPiece)) < values;) work(first, std::min(kPiece, values - first));
  }
};

// Our own threads, and the process that has them: a forked child creates others.
struct Team {
  core::Mutex mutex;
  std::unique_ptr<core::ThreadTeam> team ABSL_GUARDED_BY(mutex);
  pid_t process ABSL_GUARDED_BY(mutex) = 0;
};

Team& OwnTeam() {
  static Team& team = *new Team;
  return team;
}

}  // namespace

void OnHostThreads(int64_t values, absl::FunctionRef<void(int64_t first, int64_t count)> work) {
  Team& own = OwnTeam();
  core::MutexLock lock(own.mutex);
  Job job{.values = values, .work = work};
  if (const OpenMp omp = FindOpenMp(); omp.parallel != nullptr) {
    // OpenMP does not know of a control group's quota.
    const auto most = static_cast<unsigned>(std::clamp(omp.max_threads(), 1, core::UsableCores()));
    omp.parallel([](void* data) { static_cast<Job*>(data)->Run(); }, &job, most, 0);
    return;
  }
  if (own.team == nullptr || own.process != getpid()) {
    static_cast<void>(own.team.release());  // in a child the threads do not exist, so they cannot be joined
    own.team = std::make_unique<core::ThreadTeam>(core::UsableCores());
    own.process = getpid();
  }
  own.team->RunInOrder(
      own.team->threads(), [&](int, int64_t) { job.Run(); }, [](int64_t) {});
}

}  // namespace causeway::worker
