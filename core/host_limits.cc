#include "core/host_limits.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <fstream>
#include <optional>
#include <sstream>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "core/simulation.h"

namespace causeway::core {
namespace {

std::atomic<int> most_cores = std::numeric_limits<int>::max();

std::optional<std::string> FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  return std::getline(file, line) ? std::optional(line) : std::nullopt;
}

// "max", a missing file and anything else that is no number: none.
std::optional<int64_t> Number(const std::string& path) {
  int64_t number = 0;
  const std::optional<std::string> line = FirstLine(path);
  return line && absl::SimpleAtoi(*line, &number) ? std::optional(number) : std::nullopt;
}

// The number behind `key` in lines of "key number …".
std::optional<int64_t> NumberOf(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word;
    int64_t number = 0;
    if (words >> word >> number && word == key) return number;
  }
  return std::nullopt;
}

void TakeMemory(const std::string& folder, const char* limit, const char* used, const char* inactive,
                GroupLimits& limits) {
  const std::optional<int64_t> most = Number(folder + limit), now = Number(folder + used);
  if (!most || !now) return;
  const int64_t left = *most - *now + NumberOf(folder + "/memory.stat", inactive).value_or(0);
  limits.memory_bytes = std::min(limits.memory_bytes, std::max<int64_t>(left, 0));
}

void TakeCores(double quota, double period, GroupLimits& limits) {
  if (quota > 0 && period > 0) limits.cores = std::min(limits.cores, quota / period);
}

void TakeThreads(const std::string& folder, GroupLimits& limits) {
  const std::optional<int64_t> most = Number(folder + "/pids.max"), now = Number(folder + "/pids.current");
  if (!most || !now || *most - *now >= limits.threads) return;
  limits.threads = std::max<int64_t>(*most - *now, 0);
  limits.threads_file = folder + "/pids.max";
}

void TakeUnified(const std::string& folder, GroupLimits& limits) {
  double quota = 0, period = 0;
  std::istringstream words(FirstLine(folder + "/cpu.max").value_or(""));
  if (words >> quota >> period) TakeCores(quota, period, limits);
  TakeMemory(folder, "/memory.max", "/memory.current", "inactive_file", limits);
  TakeThreads(folder, limits);
}

void TakeCpuOfVersion1(const std::string& folder, GroupLimits& limits) {
  const auto number = [&](const char* name) { return static_cast<double>(Number(folder + name).value_or(0)); };
  TakeCores(number("/cpu.cfs_quota_us"), number("/cpu.cfs_period_us"), limits);
}

void TakeMemoryOfVersion1(const std::string& folder, GroupLimits& limits) {
  TakeMemory(folder, "/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_inactive_file", limits);
}

// Calls take(folder) for the group and all above it. Inside a container the path may be the host's, and the folders
// begin at the container's own group.
template <typename Take>
void EachGroup(const std::string& mount, std::string path, const Take& take) {
  for (; !path.empty() && path != "/"; path.resize(path.rfind('/'))) take(mount + path);
  take(mount);
}

}  // namespace

GroupLimits ReadGroupLimits(const std::string& root) {
  GroupLimits limits;
  const std::string mount = root + "/sys/fs/cgroup";
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> parts =
        absl::StrSplit(line, absl::MaxSplits(':', 2));  // hierarchy, controllers, path
    if (parts.size() != 3 || !absl::StartsWith(parts[2], "/")) continue;
    if (parts[1].empty()) EachGroup(mount, parts[2], [&](const std::string& folder) { TakeUnified(folder, limits); });
    for (const absl::string_view controller : absl::StrSplit(parts[1], ',')) {
      const std::string below = mount + "/" + std::string(controller);
      if (controller == "cpu") {
        EachGroup(below, parts[2], [&](const std::string& folder) { TakeCpuOfVersion1(folder, limits); });
      } else if (controller == "memory") {
        EachGroup(below, parts[2], [&](const std::string& folder) { TakeMemoryOfVersion1(folder, limits); });
      } else if (controller == "pids") {
        EachGroup(below, parts[2], [&](const std::string& folder) { TakeThreads(folder, limits); });
      }
    }
  }
  return limits;
}

int UsableCores() {
  if (TheSimulation() != nullptr) return 1;  // whatever the machine has
  static const int usable = [] {
    cpu_set_t cores;  // to which the process is bound; hardware_concurrency() counts all of the machine's
    const int bound = sched_getaffinity(0, sizeof(cores), &cores) == 0
                          ? CPU_COUNT(&cores)
                          : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    const double quota = std::ceil(ReadGroupLimits().cores);
    return static_cast<int>(std::max(1.0, std::min<double>(bound, quota)));
  }();
  return std::min(usable, most_cores.load());
}

void LimitCores(int cores) { most_cores = std::max(cores, 1); }

int64_t UsableMemoryBytes(const std::string& root) {
  constexpr int64_t kKilobyte = 1024;
  const std::optional<int64_t> available = NumberOf(root + "/proc/meminfo", "MemAvailable:");
  const int64_t of_machine = available ? *available * kKilobyte : std::numeric_limits<int64_t>::max();
  return std::min(of_machine, ReadGroupLimits(root).memory_bytes);
}

}  // namespace causeway::core
