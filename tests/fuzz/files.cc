// files [--format=NAME] [--cases=N] [--first=K] [--seed=N] [--out=FILE]
// Reads files that people bring, changed in ways that the seed chooses: bytes, words and numbers replaced, parts cut,
// doubled and moved, brackets that never close. Each is read as it would be by a program, in this process: a signal, an
// exception, a file that takes 20 s or a message of more than 16 kB fails, and names the kind and the case, which
// --format=NAME --first=K --cases=1 tries again.
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <random>
#include <string>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/text.h"
#include "tests/fuzz/foreign_files.h"

ABSL_FLAG(std::string, format, "", "of ForeignFiles; empty: all");
ABSL_FLAG(int64_t, cases, 2000, "how many of each kind");
ABSL_FLAG(int64_t, first, 0, "the number of the first one");
ABSL_FLAG(uint64_t, seed, 1, "of the changes");
ABSL_FLAG(std::string, out, "", "a file: the last changed one is written there before it is read");

namespace causeway {
namespace {

constexpr unsigned kLongestCaseS = 20;
constexpr size_t kLongestMessage = 16'384;
constexpr rlim_t kMostMemory = rlim_t{4} << 30;  // of address space
constexpr size_t kDeep = 100'000;

std::string current_case;  // for the signal's handler

void OnSignal(int signal) {
  const char* const name = sigabbrev_np(signal);
  for (const std::string_view part : {std::string_view("files: "), std::string_view(current_case),
                                      std::string_view(": SIG"), std::string_view(name), std::string_view("\n")}) {
    if (write(STDERR_FILENO, part.data(), part.size()) < 0) break;
  }
  ::signal(signal, SIG_DFL);
  raise(signal);
}

void CatchSignals() {
  static std::array<char, 1 << 16> stack;  // an overflow leaves none
  const stack_t other = {.ss_sp = stack.data(), .ss_flags = 0, .ss_size = stack.size()};
  sigaltstack(&other, nullptr);
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_ONSTACK;
  for (const int signal : {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGALRM}) sigaction(signal, &action, nullptr);
}

std::string Repeated(std::string_view text, size_t times) {
  std::string all;
  for (size_t i = 0; i < times; ++i) all += text;
  return all;
}

class Changes {
  size_t Draw(size_t below) { return random_() % std::max<size_t>(below, 1); }
  template <typename List>
  const auto& OneOf(const List& list) {
    return list[Draw(std::size(list))];
  }

 public:
  Changes(const ForeignFile& kind, uint64_t seed) : kind_(kind), random_(seed) {}

  std::string File() {
    std::string file = OneOf(kind_.seeds);
    for (uint64_t left = 1 + Draw(4); left > 0; --left) Change(file);
    return file;
  }

 private:
  void Change(std::string& file) {
    switch (Draw(10)) {
      case 0: return Byte(file);
      case 1: file.resize(Draw(file.size())); return;
      case 2: Cut(file); return;
      case 3: file.insert(Draw(file.size() + 1), Part(file)); return;
      case 4: file.insert(Draw(file.size() + 1), Part(OneOf(kind_.seeds))); return;
      case 5: file.insert(Draw(file.size() + 1), Word()); return;
      case 6: return Number(file);
      case 7: return Value(file);
      case 8: return Byte(file);
      default: return Number(file);
    }
  }

  void Byte(std::string& file) {
    if (file.empty()) return;
    char& byte = file[Draw(file.size())];
    byte = Draw(2) == 0 ? static_cast<char>(byte ^ (1 << Draw(8))) : static_cast<char>(Draw(256));
  }

  std::string Part(const std::string& file) {
    const size_t begin = Draw(file.size());
    return file.substr(begin, 1 + Draw(std::min<size_t>(file.size(), 200)));
  }

  void Cut(std::string& file) {
    const size_t begin = Draw(file.size());
    file.erase(begin, 1 + Draw(64));
  }

  // A number of the text becomes another one.
  void Number(std::string& file) {
    constexpr char kDigits[] = "0123456789+-.eE";
    const size_t begin = file.find_first_of("0123456789", Draw(file.size()));
    if (begin == std::string::npos) return Byte(file);
    const size_t end = std::min(file.find_first_not_of(kDigits, begin), file.size());
    file.replace(begin, end - begin, HostileNumber());
  }

  // A value after a colon or a comma becomes something else.
  void Value(std::string& file) {
    const size_t before = file.find_first_of(":,[= ", Draw(file.size()));
    if (before == std::string::npos) return Byte(file);
    const size_t end = std::min(file.find_first_of(",]}\n", before + 1), file.size());
    file.replace(before + 1, end - before - 1, Word());
  }

  std::string HostileNumber() {
    static constexpr const char* kNumbers[] = {"0",
                                               "-1",
                                               "1",
                                               "2",
                                               "1e15",
                                               "1e308",
                                               "-1e308",
                                               "1e-320",
                                               "1e999",
                                               "NaN",
                                               "-Infinity",
                                               "0.5",
                                               "2147483647",
                                               "-2147483648",
                                               "4294967296",
                                               "65536",
                                               "9223372036854775807",
                                               "-9223372036854775808",
                                               "9223372036854775808",
                                               "18446744073709551615",
                                               "18446744073709551616",
                                               "100000",
                                               "1000000"};
    return OneOf(kNumbers);
  }

  std::string Word() {
    static const std::string kWords[] = {"null",
                                         "true",
                                         "{}",
                                         "[]",
                                         "\"\"",
                                         "\"x\"",
                                         "[[]]",
                                         "{\"a\":{}}",
                                         "[1,2,3]",
                                         "\"\\ud800\"",
                                         "\\u0000",
                                         "\n",
                                         "\r",
                                         "\t",
                                         " ",
                                         "#",
                                         "'",
                                         "\"",
                                         "\\",
                                         ",",
                                         ":",
                                         "-",
                                         "?",
                                         "&a ",
                                         "*a",
                                         "!!binary ",
                                         "<<: ",
                                         "|",
                                         ">",
                                         "%",
                                         "---\n",
                                         "\xff",
                                         "\x1b[2J",
                                         std::string(1, '\0'),
                                         "\xE2\x80\xAE",
                                         "\xC2\x9B",
                                         "../",
                                         "/",
                                         "/dev/zero",
                                         "nan",
                                         "inf",
                                         "0x10",
                                         "(",
                                         ")"};
    switch (Draw(40)) {
      case 0: return Repeated("[", kDeep);
      case 1: return Repeated("{\"a\":", kDeep);
      case 2: return Repeated("[", kDeep) + Repeated("]", kDeep);
      case 3: return Repeated("[", 60) + Repeated("]", 60);
      case 4: return absl::StrCat("\"", std::string(kDeep, 'x'), "\"");
      case 5: return std::string(kDeep, Draw(2) == 0 ? '9' : 'x');
      case 6: return Repeated("- ", 2000);
      case 7: return absl::StrCat("[", Repeated("1,", 20'000), "1]");
      case 8: return HostileNumber();
      default: return OneOf(kWords);
    }
  }

  const ForeignFile& kind_;
  std::mt19937_64 random_;
};

void CheckMessage(const absl::Status& status) {
  if (status.message().size() <= kLongestMessage) return;
  std::fprintf(stderr, "files: %s: a message of %zu bytes: %s\n", current_case.c_str(), status.message().size(),
               core::Printable(core::Clipped(std::string(status.message()), 600)).c_str());
  std::exit(1);
}

void Try(const ForeignFile& kind) {
  for (const std::string& seed : kind.seeds) {
    current_case = absl::StrCat(kind.name, ", unchanged");
    const absl::Status honest = kind.read(seed);
    if (honest.ok()) continue;
    std::fprintf(stderr, "files: %s: expected no error, got %s\n", current_case.c_str(),
                 std::string(honest.message()).c_str());
    std::exit(1);
  }
  const int64_t first = absl::GetFlag(FLAGS_first), cases = absl::GetFlag(FLAGS_cases);
  int64_t refused = 0;
  for (int64_t i = first; i < first + cases; ++i) {
    current_case =
        absl::StrCat("--format=", kind.name, " --seed=", absl::GetFlag(FLAGS_seed), " --first=", i, " --cases=1");
    const std::string file = Changes(kind, absl::GetFlag(FLAGS_seed) * 1'000'003 + static_cast<uint64_t>(i)).File();
    if (const std::string out = absl::GetFlag(FLAGS_out); !out.empty()) std::ofstream(out, std::ios::binary) << file;
    alarm(kLongestCaseS);
    const absl::Status status = kind.read(file);
    alarm(0);
    CheckMessage(status);
    refused += status.ok() ? 0 : 1;
  }
  std::printf("%-18s %8ld read, %8ld of them refused\n", kind.name.c_str(), static_cast<long>(cases),
              static_cast<long>(refused));
}

}  // namespace
}  // namespace causeway

int main(int argc, char** argv) {
  using namespace causeway;
  absl::ParseCommandLine(argc, argv);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  const rlimit limit = {kMostMemory, kMostMemory};
  setrlimit(RLIMIT_AS, &limit);
  CatchSignals();
#endif
  const std::string wanted = absl::GetFlag(FLAGS_format);
  int tried = 0;
  for (const ForeignFile& kind : ForeignFiles()) {
    if (!wanted.empty() && kind.name != wanted) continue;
    Try(kind);
    ++tried;
  }
  if (tried > 0) return 0;
  std::fprintf(stderr, "files: --format: expected one of ForeignFiles, got '%s'\n", wanted.c_str());
  return 2;
}
