#include "ctl/thread_limit.h"

#include <pthread.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <latch>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/host_limits.h"

namespace causeway::ctl {
namespace {

constexpr int kGrpcThreads = 10;
constexpr int kGrpcThreadsPerCore = 2, kMostCores = 16;

void* Wait(void* all_started) {
  static_cast<std::latch*>(all_started)->wait();
  return nullptr;
}

std::string Limits() {
  rlimit limit = {};
  getrlimit(RLIMIT_NPROC, &limit);
  std::string own =
      limit.rlim_cur == RLIM_INFINITY ? "ulimit -u sets no limit" : absl::StrCat("ulimit -u is ", limit.rlim_cur);
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    const rlim_t stacks = limit.rlim_cur >> 10;
    getrlimit(RLIMIT_STACK, &limit);
    own = absl::StrCat("ulimit -v is ", stacks, " kB, of which each thread takes ",
                       limit.rlim_cur == RLIM_INFINITY ? 2048 : limit.rlim_cur >> 10, "; ", own);
  }
  const core::GroupLimits group = core::ReadGroupLimits();
  if (group.threads_file.empty()) return own;
  return absl::StrCat(own, "; ", group.threads_file, " leaves ", group.threads);
}

}  // namespace

absl::Status CheckThreads(int own) {
  const int threads = own + kGrpcThreads + kGrpcThreadsPerCore * std::min(kMostCores, core::UsableCores());
  std::latch all_started(1);
  std::vector<pthread_t> started;
  int error = 0;
  while (static_cast<int>(started.size()) < threads && error == 0) {
    pthread_t thread = {};
    error = pthread_create(&thread, nullptr, Wait, &all_started);
    if (error == 0) started.push_back(thread);
  }
  all_started.count_down();
  for (const pthread_t thread : started) pthread_join(thread, nullptr);
  if (error == 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("expected to start ", threads, " threads, got ", started.size(),
                                                   " (", std::strerror(error), "): ", Limits()));
}

void RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
    spdlog::warn("cannot raise the limit of open files: {}", std::strerror(errno));
}

}  // namespace causeway::ctl
