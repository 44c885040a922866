#include "ctl/program.h"

#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <latch>
#include <optional>

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/check.h"
#include "core/clock.h"
#include "core/host_limits.h"
#include "core/limits.h"
#include "core/text.h"
#include "ctl/program_log.h"
#include "ctl/standard_streams.h"

ABSL_FLAG(std::string, log_format, "text", "text | json: one line for each event, on stderr");

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

namespace causeway::ctl {

void SetUpHeap() {
#if defined(__GLIBC__)
  mallopt(M_ARENA_MAX, 1);
  mallopt(M_MMAP_THRESHOLD, 4 * core::kMaxChunkBytes);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);  // payloads in flight, of most runs
  mallopt(M_TOP_PAD, 16 * core::kMaxChunkBytes);
#endif
}

namespace {

constexpr int64_t kSignalPollMs = 200;  // how long the end of the program may wait for the signal thread
// A request to stop often reaches a process twice: as one of a terminal's, a unit's or a job step's, and from the
// launcher of its ranks.
constexpr double kSameRequestS = 1;

std::vector<std::string>& given_flags = *new std::vector<std::string>;

[[noreturn]] void BadFlag(const std::string& message) {
  std::fprintf(stderr, "error: %s (--help lists the flags)\n", core::Printable(message).c_str());
  std::exit(kBadInput);
}

// Our own flags, not those that libraries define.
bool IsOurs(const absl::CommandLineFlag& flag) {
  const std::string file = flag.Filename();
  return absl::EndsWith(file, "main.cc") || absl::EndsWith(file, "program.cc") ||
         absl::EndsWith(file, "client_flags.cc") || absl::EndsWith(file, "_command.cc");
}

// "; the nearest is --watch", or nothing.
std::string NearestFlag(const std::string& name) {
  std::string nearest;
  size_t least = std::max<size_t>(1, name.size() / 3) + 1;
  for (const auto& [other, flag] : absl::GetAllFlags()) {
    const size_t distance = core::EditDistance(std::string(other), name);
    if (!IsOurs(*flag) || distance >= least) continue;
    least = distance;
    nearest = absl::StrCat("; the nearest is --", other);
  }
  return nearest;
}

const char* Expected(const absl::CommandLineFlag& flag) {
  if (flag.IsOfType<bool>()) return "true or false";
  if (flag.IsOfType<double>() || flag.IsOfType<std::optional<double>>()) return "a number";
  return "a whole number";  // texts take anything
}

[[noreturn]] void PrintHelp(const std::string& usage) {
  std::printf("%s\n", usage.c_str());
  for (const auto& [name, help] : OwnFlags()) std::printf("  --%s  %s\n", name.c_str(), help.c_str());
  std::exit(EndOutput(kDone));
}

// ", such as --watch", or nothing.
std::string FlagsThatBeginWith(char letter) {
  std::vector<std::string> names;
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    if (IsOurs(*flag) && name[0] == letter) names.push_back(absl::StrCat("--", name));
  }
  std::ranges::sort(names);
  return names.empty() ? "" : absl::StrCat(", such as ", absl::StrJoin(names, ", "));
}

// The arguments that are no flags, wherever they stand.
std::vector<std::string> Words(int argc, char** argv) {
  std::vector<std::string> words;
  for (int i = 1; i < argc; ++i) {
    if (argv[i][0] != '-') words.emplace_back(argv[i]);
  }
  return words;
}

// One argument that begins with --; `next` is the one after it, or null. True if `next` was its value.
bool ParseFlag(const std::string& argument, const char* next, const std::set<std::string>& alone) {
  const size_t equals = argument.find('=');
  std::string name = argument.substr(2, equals == std::string::npos ? std::string::npos : equals - 2);
  if (name == "version") {
    PrintVersion();
    std::exit(EndOutput(kDone));
  }
  std::string value = equals == std::string::npos ? "" : argument.substr(equals + 1);
  bool took_next = false;
  std::ranges::replace(name, '-', '_');  // --dry-run is --dry_run
  absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
  if (flag == nullptr && equals == std::string::npos && name.compare(0, 2, "no") == 0) {
    flag = absl::FindCommandLineFlag(name.substr(2));
    if (flag != nullptr && !flag->IsOfType<bool>()) flag = nullptr;
    value = "false";
  } else if (flag != nullptr && equals == std::string::npos) {
    const bool ends = next == nullptr || absl::StartsWith(next, "--");
    took_next = !flag->IsOfType<bool>() && !(ends && alone.contains(name));
    if (took_next && next == nullptr) BadFlag(absl::StrCat("--", name, ": expected a value"));
    value = took_next ? next : flag->IsOfType<bool>() ? "true" : "";
  }
  if (flag == nullptr || !IsOurs(*flag)) BadFlag(absl::StrCat("unknown flag --", name, NearestFlag(name)));
  std::string error;
  if (!flag->ParseFrom(value, &error)) {
    BadFlag(
        absl::StrCat("--", name, ": expected ", Expected(*flag), ", got ", core::Quoted(value), "; ", flag->Help()));
  }
  given_flags.emplace_back(flag->Name());
  return took_next;
}

void SetUpLogOfFlag() {
  const std::string format = absl::GetFlag(FLAGS_log_format);
  if (format != "text" && format != "json") {
    BadFlag(absl::StrCat("--log_format: expected text or json, got ", core::Quoted(format)));
  }
  SetUpLog(format == "json" ? LogFormat::kJson : LogFormat::kText);
}

// Whether SIGHUP was ignored when the program began, as nohup has it. Asked before any library's constructor: UCX, which
// Debian 13's Gloo brings, takes the signal for itself.
bool under_nohup = false;

__attribute__((no_sanitize("address", "thread", "undefined"))) void AskForNohup() {
  struct sigaction before = {};
  under_nohup = sigaction(SIGHUP, nullptr, &before) == 0 && before.sa_handler == SIG_IGN;
}
[[gnu::section(".preinit_array"), gnu::used]] void (*const ask_for_nohup)() = AskForNohup;

// Carries a stop signal from the handler, which may do little more than write, to the thread that waits for it.
int stop_pipe[2] = {-1, -1};

void OnStopSignal(int) {
  const int error = errno;
  const char byte = 0;
  if (write(stop_pipe[1], &byte, 1) < 0) {
    // The pipe is full of signals that no thread waited for: one more adds nothing.
  }
  errno = error;
}

}  // namespace

std::map<std::string, std::string> OwnFlags() {
  std::map<std::string, std::string> flags;
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    if (!IsOurs(*flag)) continue;
    const std::string value = flag->DefaultValue();
    flags[std::string(name)] = absl::StrCat(flag->Help(), value.empty() ? "" : absl::StrCat(" (default ", value, ")"));
  }
  return flags;
}

std::vector<std::string> StartProgram(int argc, char** argv, const std::string& usage, const ProgramForm& form) {
  SetUpLog(LogFormat::kText);  // until the flags are read
  std::vector<std::string> arguments;
  bool flags_end = false;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (!flags_end && argument.size() > 1 && argument[0] == '-' &&
        absl::ascii_isalpha(static_cast<unsigned char>(argument[1]))) {
      if (argument == "-h") PrintHelp(usage);
      BadFlag(
          absl::StrCat("unknown flag ", argument, ": flags begin with two dashes", FlagsThatBeginWith(argument[1])));
    } else if (flags_end || argument.compare(0, 2, "--") != 0) {
      arguments.push_back(argument);
    } else if (argument == "--") {
      flags_end = true;
    } else if (argument == "--help" || argument == "--helpfull") {
      const std::string help = form.help && argument == "--help" ? form.help(Words(argc, argv)) : "";
      if (help.empty()) PrintHelp(usage);
      std::printf("%s", help.c_str());
      std::exit(EndOutput(kDone));
    } else if (ParseFlag(argument, i + 1 < argc ? argv[i + 1] : nullptr, form.alone)) {
      ++i;
    }
  }
  SetUpLogOfFlag();
  return arguments;
}

absl::Status FlagsAlone(const std::vector<std::string>& arguments) {
  if (arguments.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError("expected flags alone, got " + core::Quoted(arguments[0]));
}

const std::vector<std::string>& GivenFlags() { return given_flags; }

void PrintVersion() { std::printf("causeway %s\n", CAUSEWAY_VERSION); }

int Fail(ExitCode code, const absl::Status& status) {
  spdlog::error("{}", std::string(status.message()));
  return code;
}

int EndOutput(int code) {
  if (FlushStandardOutput()) return code;
  if (code != kDone || errno == EPIPE) return code == kDone ? kFailed : code;  // head has what it wanted
  spdlog::error("cannot write all of the result to standard output{}",
                errno != 0 ? absl::StrCat(": ", std::strerror(errno)) : "");
  return kFailed;
}

// Not by a blocked signal and sigtimedwait: threads that a library starts before main (as OpenBLAS does) would not
// block it, and the signal would end the program there.
void CatchStopSignals() {
  CHECK(pipe2(stop_pipe, O_CLOEXEC | O_NONBLOCK) == 0);
  struct sigaction action = {};
  action.sa_handler = OnStopSignal;
  action.sa_flags = SA_RESTART;
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGUSR2, SIGXCPU}) sigaction(signal, &action, nullptr);
  if (under_nohup) action.sa_handler = SIG_IGN;
  sigaction(SIGHUP, &action, nullptr);
}

bool WaitForStopSignal(int64_t timeout_ms) {
  pollfd readable = {.fd = stop_pipe[0], .events = POLLIN, .revents = 0};
  char byte = 0;
  return poll(&readable, 1, static_cast<int>(timeout_ms)) > 0 && read(stop_pipe[0], &byte, 1) == 1;
}

StopSignals::StopSignals(std::function<void()> stop)
    : thread_([stop = std::move(stop)](std::stop_token ended) {
        std::optional<core::Clock::TimePoint> stopped;
        while (!ended.stop_requested()) {
          if (!WaitForStopSignal(kSignalPollMs)) continue;
          if (stopped && core::SystemClock().SecondsSince(*stopped) > kSameRequestS) std::_Exit(kFailed);
          if (stopped) continue;
          stopped = core::SystemClock().Now();
          stop();
        }
      }) {}

StopSignals::~StopSignals() = default;

}  // namespace causeway::ctl
