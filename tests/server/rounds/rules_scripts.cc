// rules_scripts [--record] FILE ...: plays scripts of events to the rules of a run (rules_script.h), and fails where
// one says something else than its file; or writes the files anew.
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "tests/server/rounds/rules_script.h"

namespace {

std::string Read(const std::string& path) {
  std::ifstream file(path);
  if (!file) return "";
  return {std::istreambuf_iterator<char>(file), {}};
}

// The first line that differs.
void PrintDifference(const std::string& path, const std::string& expected, const std::string& played) {
  const std::vector<std::string> before = absl::StrSplit(expected, '\n');
  const std::vector<std::string> now = absl::StrSplit(played, '\n');
  size_t at = 0;
  while (at < before.size() && at < now.size() && before[at] == now[at]) ++at;
  const auto line = [at](const std::vector<std::string>& of) { return at < of.size() ? of[at].c_str() : "the end"; };
  std::printf("%s:%zu:\n  expected: %s\n  got:      %s\n", path.c_str(), at + 1, line(before), line(now));
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> paths(argv + 1, argv + argc);
  const bool record = std::erase(paths, "--record") > 0;
  if (paths.empty()) {
    std::printf("expected the files of scripts, got none\n");
    return 2;
  }
  int differ = 0;
  for (const std::string& path : paths) {
    const std::string expected = Read(path);
    const std::string played = causeway::server::RulesScript().Play(expected);
    if (record) {
      std::ofstream(path) << played;
    } else if (played != expected || expected.empty()) {
      PrintDifference(path, expected, played);
      ++differ;
    }
  }
  std::printf("%zu scripts, %d differ\n", paths.size(), differ);
  return differ == 0 ? 0 : 1;
}
