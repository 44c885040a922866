// How a program's log is doing, whose reader may stand still.
#pragma once

#include <cstdint>

namespace causeway::core {

struct LogFigures {
  double stuck_s = 0;   // for how long lines have been waiting, without one being taken; 0: none waits
  int64_t waiting = 0;  // lines
  int64_t dropped = 0;  // lines, in this life of the program
};

}  // namespace causeway::core
