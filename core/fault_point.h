// Instants at which a test ends the process: the ones where what is on disk is between two states.
#pragma once

namespace causeway::core {

// Does nothing. The definition is an object of its own in the library, so that a test program that defines another one
// links that instead, and may kill the process at a name chosen by its environment. On the thread that does the work.
void FaultPoint(const char* name);

}  // namespace causeway::core
