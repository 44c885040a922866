// The kinds of files that people bring: an honest one of each, and what the programs do with it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace causeway {

struct ForeignFile {
  std::string name;
  std::vector<std::string> seeds;  // files that are read without an error
  // As a program does: reads the bytes, and uses what it has read.
  std::function<absl::Status(const std::string& bytes)> read;
};

std::vector<ForeignFile> ForeignFiles();

}  // namespace causeway
