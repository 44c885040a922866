// Scripts that test rules: lines of events, with what came of each below it. A file of a testdata/ folder is such a
// script with its outcomes: a rule is tested by reading that it says so again.
//
//   # Why the case is there.
//   10 contribute a b base=0 : words        time, verb, words, fields by name, and what stands behind " : "
//   -> close fragment=0 …                   an action
//   => training                             what has changed
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/check.h"

namespace causeway::core {

struct ScriptLine {
  std::vector<std::string> words;
  std::map<std::string, std::string> fields;
  std::string text;
  std::string line;  // as it stands there

  static ScriptLine Of(const std::string& line) {
    ScriptLine result{.words = {}, .fields = {}, .text = {}, .line = line};
    const size_t colon = line.find(" : ");
    if (colon != std::string::npos) result.text = line.substr(colon + 3);
    for (const std::string& word :
         std::vector<std::string>(absl::StrSplit(line.substr(0, colon), ' ', absl::SkipEmpty()))) {
      const size_t equals = word.find('=');
      if (equals == std::string::npos) {
        result.words.emplace_back(word);
      } else {
        result.fields[word.substr(0, equals)] = word.substr(equals + 1);
      }
    }
    return result;
  }

  bool Has(const std::string& field) const { return fields.contains(field); }
  std::string Word(const std::string& field, const std::string& otherwise = "") const {
    const auto found = fields.find(field);
    return found == fields.end() ? otherwise : found->second;
  }
  int64_t Number(const std::string& field, int64_t otherwise = 0) const {
    if (!Has(field)) return otherwise;
    CHECK(absl::SimpleAtoi(Word(field), &otherwise));
    return otherwise;
  }
  double Real(const std::string& field, double otherwise = 0) const {
    if (!Has(field)) return otherwise;
    CHECK(absl::SimpleAtod(Word(field), &otherwise));
    return otherwise;
  }
  std::vector<std::string> List(const std::string& field) const {
    return absl::StrSplit(Word(field), ',', absl::SkipEmpty());
  }
  std::vector<int64_t> Numbers(const std::string& field) const {
    std::vector<int64_t> numbers;
    for (const std::string& text : List(field)) CHECK(absl::SimpleAtoi(text, &numbers.emplace_back()));
    return numbers;
  }
};

// The script's lines, each followed by its outcomes, whole lines that `play` returns; those that the script contains
// are left out.
inline std::string PlayScript(const std::string& script, const std::function<std::string(const ScriptLine&)>& play) {
  std::string played;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(script, '\n'))) {
    if (line.starts_with("->") || line.starts_with("=>")) continue;
    absl::StrAppend(&played, line, "\n");
    if (absl::StripAsciiWhitespace(line).empty() || line.starts_with("#")) continue;
    played += play(ScriptLine::Of(line));
  }
  if (script.ends_with('\n')) played.pop_back();  // the empty line behind it
  return played;
}

// Plays each file of a folder. With CAUSEWAY_RECORD_RULES=1 they are written anew, with the outcomes of today: read the
// difference before you keep it.
inline void ExpectScripts(const std::filesystem::path& folder,
                          const std::function<std::string(const std::string& script)>& play) {
  int scripts = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    if (!file.is_regular_file()) continue;
    ++scripts;
    std::ifstream stream(file.path());
    const std::string expected(std::istreambuf_iterator<char>(stream), {});
    const std::string played = play(expected);
    if (std::getenv("CAUSEWAY_RECORD_RULES") != nullptr) {
      std::ofstream(file.path()) << played;
    } else if (played != expected) {
      const auto differs = std::ranges::mismatch(expected, played).in2 - played.begin();
      const auto line = played.rfind('\n', differs) + 1;
      ADD_FAILURE() << file.path().string() << ":" << std::count(played.begin(), played.begin() + differs, '\n') + 1
                    << ": got " << played.substr(line, played.find('\n', differs) - line);
    }
  }
  EXPECT_GT(scripts, 0) << folder;
}

}  // namespace causeway::core
