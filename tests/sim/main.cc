// simulate --seed=N [--events=M] [--log] [--verbose] [--folder=DIR]: see tests/sim/run.
#include <spdlog/sinks/null_sink.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <filesystem>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_format.h"
#include "tests/sim/world.h"

ABSL_FLAG(uint64_t, seed, 1, "the run's");
ABSL_FLAG(int64_t, events, 3000, "that faults last for");
ABSL_FLAG(bool, log, false, "print every event");
ABSL_FLAG(bool, verbose, false, "print what the programs log");
ABSL_FLAG(
    std::string, folder, "",
    "of the disks; emptied at the begin, and kept. Where damage lies depends on the length of its path: 29 characters "
    "where none is given, and such a one is removed");

int main(int argc, char** argv) {
  using namespace causeway::sim;
  setvbuf(stdout, nullptr, _IOLBF, 0);
  absl::ParseCommandLine(argc, argv);
  if (!absl::GetFlag(FLAGS_verbose)) spdlog::set_default_logger(spdlog::create<spdlog::sinks::null_sink_st>("none"));
  spdlog::set_level(absl::GetFlag(FLAGS_verbose) ? spdlog::level::debug : spdlog::level::off);
  const uint64_t seed = absl::GetFlag(FLAGS_seed);
  std::string folder = absl::GetFlag(FLAGS_folder);
  // Programs store paths, and where damage lies depends on how long these are: the same length always.
  if (folder.empty()) {
    const std::string where = std::filesystem::exists("/dev/shm") ? "/dev/shm" : "/tmp";
    folder = absl::StrFormat("%s/causeway-sim-%0*d", where, static_cast<int>(15 - where.size()), getpid());
  }
  std::filesystem::remove_all(folder);  // of one that was killed
  int result = 0;
  {
    World world(seed, folder);
    if (absl::GetFlag(FLAGS_log)) world.machine().ShowLog();
    const std::string failure = world.Run(absl::GetFlag(FLAGS_events));
    std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed), world.Summary().c_str());
    if (!failure.empty()) {
      std::printf("seed %llu FAILED: %s\n", static_cast<unsigned long long>(seed), failure.c_str());
      result = 1;
    }
  }
  if (absl::GetFlag(FLAGS_folder).empty()) std::filesystem::remove_all(folder);
  std::fflush(stdout);
  _exit(result);  // killed processes left everything behind
}
