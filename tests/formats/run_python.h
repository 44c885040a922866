// Runs a script of this repository with the system's Python, as an independent witness of what a file holds.
#pragma once

#include <cstdio>
#include <string>

#include "tests/folders.h"

namespace causeway {

// The output of `script` (a path in the repository) about `file`, with its complaints if it fails.
inline std::string RunPython(const std::string& script, const std::string& file) {
  const std::string command = "/usr/bin/python3 " + InSource(script) + " '" + file + "' 2>&1";
  FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return "cannot run " + command;
  std::string output;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) output.push_back(static_cast<char>(c));
  ::pclose(pipe);
  return output;
}

}  // namespace causeway
