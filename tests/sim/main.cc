// simulate --seed=N [--events=M] [--log] [--verbose] [--folder=DIR] [--ready=FILE | --ready_text=K]: see tests/sim/run.
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/null_sink.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <filesystem>
#include <mutex>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "core/digest.h"
#include "tests/sim/world.h"

ABSL_FLAG(uint64_t, seed, 1, "the run's");
ABSL_FLAG(int64_t, events, 3000, "that faults last for");
ABSL_FLAG(bool, log, false, "print every event");
ABSL_FLAG(bool, verbose, false, "print what the programs log");
ABSL_FLAG(
    std::string, folder, "",
    "of the disks; emptied at the begin, and kept. Where damage lies depends on the length of its path: 29 characters "
    "where none is given, and such a one is removed");
ABSL_FLAG(std::string, ready, "", "file for a hash of each Ready of the coordinators, a line each");
ABSL_FLAG(int64_t, ready_text, 0, "print the Ready of that line");

namespace {

// Records each Ready (server/run/ready.h): the programs log nothing else at that level.
class ReadySink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  ReadySink(const std::string& path, std::string folder)
      : file_(path.empty() ? nullptr : std::fopen(path.c_str(), "w")), folder_(std::move(folder)) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    if (message.level != spdlog::level::trace) return;
    const std::string text = absl::StrReplaceAll({message.payload.data(), message.payload.size()}, {{folder_, "DIR"}});
    if (++lines_ == absl::GetFlag(FLAGS_ready_text)) std::printf("%s\n", text.c_str());
    if (file_ != nullptr) absl::FPrintF(file_, "%08x\n", causeway::core::Xxh3(text.data(), text.size()) >> 32);
  }
  void flush_() override {
    if (file_ != nullptr) std::fflush(file_);
  }

  FILE* const file_;
  const std::string folder_;  // of the disks; the process's number is in its name
  int64_t lines_ = 0;
};

void SetUpLog(const std::string& folder) {
  using spdlog::level::level_enum;
  const bool verbose = absl::GetFlag(FLAGS_verbose);
  spdlog::set_level(verbose ? level_enum::debug : level_enum::off);
  if (!absl::GetFlag(FLAGS_ready).empty() || absl::GetFlag(FLAGS_ready_text) > 0) {
    spdlog::set_default_logger(
        std::make_shared<spdlog::logger>("ready", std::make_shared<ReadySink>(absl::GetFlag(FLAGS_ready), folder)));
    spdlog::set_level(level_enum::trace);
  } else if (!verbose) {
    spdlog::set_default_logger(spdlog::create<spdlog::sinks::null_sink_st>("none"));
  }
}

}  // namespace

int main(int argc, char** argv) {
  using namespace causeway::sim;
  setvbuf(stdout, nullptr, _IOLBF, 0);
  absl::ParseCommandLine(argc, argv);
  const uint64_t seed = absl::GetFlag(FLAGS_seed);
  std::string folder = absl::GetFlag(FLAGS_folder);
  // Programs store paths, and where damage lies depends on how long these are: the same length always.
  if (folder.empty()) {
    const std::string where = std::filesystem::exists("/dev/shm") ? "/dev/shm" : "/tmp";
    folder = absl::StrFormat("%s/causeway-sim-%0*d", where, static_cast<int>(15 - where.size()), getpid());
  }
  SetUpLog(folder);
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
  spdlog::default_logger()->flush();
  _exit(result);  // killed processes left everything behind
}
