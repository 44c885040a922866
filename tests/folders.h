// Where the source tree and the build lie. Their paths are in one generated file (tests/folders.cc.in): on the command
// lines of the tests they would keep the compiler's cache from serving a second clone.
#pragma once

#include <string>

namespace causeway {

std::string InSource(const std::string& path);  // "/…/tests/golden", of "tests/golden"
std::string InBuild(const std::string& path);

}  // namespace causeway
