// The common parts of the three programs: flags, log, signals, exit codes (docs/operating: "Programs"). Only main.cc
// files include it.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "ctl/program_log.h"

namespace causeway::ctl {

enum ExitCode {
  kDone = 0,
  kFailed = 1,       // a failure at run time
  kBadInput = 2,     // a bad flag, config or data; nothing was started
  kRefused = 3,      // refused by the coordinator
  kNonFinite = 4,    // values that are not finite
  kUnreachable = 5,  // coordinator not reached within --connect_timeout_s
};

// Parses --name=value, --name value, --name and --noname (Abseil flags) and sets up the log on stderr. Ends the program
// on --help and --version with 0, on an unknown flag or a bad value with kBadInput and a message. Returns the
// arguments that are no flags.
struct ProgramForm {
  // Flags that take a text, which is empty where another flag or the end follows.
  std::set<std::string> alone = {};
  // The text of --help beside these arguments that are no flags; empty, or null: the usage and all flags, as
  // --helpfull.
  std::function<std::string(const std::vector<std::string>& arguments)> help = nullptr;
};
std::vector<std::string> StartProgram(int argc, char** argv, const std::string& usage, const ProgramForm& form = {});

// The program's own flags with their help, and their default where it says something.
std::map<std::string, std::string> OwnFlags();

// INVALID_ARGUMENT if there are arguments that are no flags, in a program that takes none.
absl::Status FlagsAlone(const std::vector<std::string>& arguments);

// The names of the flags that the arguments gave, in their order.
const std::vector<std::string>& GivenFlags();

void PrintVersion();

// Prints "error: message" to the log and returns the code.
int Fail(ExitCode code, const absl::Status& status);

// The exit code of a program that ends with `code` and has printed its result: kFailed with an error in the log where
// standard output has not taken all of it. Call last in main.
int EndOutput(int code);

// From here on SIGTERM, SIGINT, SIGHUP, and SIGUSR1, SIGUSR2 and SIGXCPU, by which batch systems warn, do not end the
// program: WaitForStopSignal reports them. SIGHUP stays ignored where it is, as under nohup.
// REQUIRES: PrepareStandardStreams alone was called before.
void CatchStopSignals();

// Waits up to `timeout_ms` for one of these signals. True if one came.
bool WaitForStopSignal(int64_t timeout_ms);

// Calls `stop` on a separate thread for the first of these signals, and ends the program at another one that comes a
// second later or after that.
class StopSignals {
 public:
  explicit StopSignals(std::function<void()> stop);
  ~StopSignals();

 private:
  std::jthread thread_;
};

// The heap of a program through which large payloads pass. REQUIRES: no other thread has allocated yet.
//
// By default glibc maps each chunk on its own, gives it back when it is freed, and faults every byte of the next one in
// again, which costs more than the chunk's way through gRPC; and each of gRPC's threads has its own arena, so that no
// other thread reuses memory that one has freed. Here chunks share one arena, which stays; arrays of parameters are
// mapped.
void SetUpHeap();

// Whether this process may start the threads that it needs. Without them it would end, or wait for ever, somewhere in a
// library, and say nothing of the limit.

// Starts the program's `own` threads and as many as gRPC has, all at once, and ends them. RESOURCE_EXHAUSTED names the
// number that could be started, and the limits that are set: `ulimit -u` and the control group's pids.max.
absl::Status CheckThreads(int own);

// Connections are descriptors: raises the limit to the maximum that the administrator allows.
void RaiseDescriptorLimit();

}  // namespace causeway::ctl
