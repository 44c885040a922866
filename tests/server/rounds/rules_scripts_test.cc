// The scripts of testdata/ (rules_script.h). CAUSEWAY_RULES_SCRIPTS names another folder; with CAUSEWAY_RECORD_RULES=1
// the files are written anew, with the outcomes of today: read the difference before you keep it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/server/rounds/rules_script.h"

namespace causeway::server {
namespace {

std::filesystem::path Folder() {
  const char* other = std::getenv("CAUSEWAY_RULES_SCRIPTS");
  return other != nullptr ? other : RULES_TESTDATA;
}

std::string Read(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(RulesScripts, HaveTheOutcomesThatTheirFilesExpect) {
  int scripts = 0;
  for (const auto& file : std::filesystem::directory_iterator(Folder())) {
    ++scripts;
    const std::string expected = Read(file.path());
    const std::string played = RulesScript().Play(expected);
    if (std::getenv("CAUSEWAY_RECORD_RULES") != nullptr) {
      std::ofstream(file.path()) << played;
    } else if (played != expected) {
      const auto differs = std::ranges::mismatch(expected, played).in2 - played.begin();
      const auto line = played.rfind('\n', differs) + 1;
      ADD_FAILURE() << file.path().string() << ":" << std::count(played.begin(), played.begin() + differs, '\n') + 1
                    << ": got " << played.substr(line, played.find('\n', differs) - line);
    }
  }
  EXPECT_GT(scripts, 0) << Folder();
}

}  // namespace
}  // namespace causeway::server
