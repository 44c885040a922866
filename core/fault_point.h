// Instants at which a test ends the process: those at which the files on disk are between two states.
#pragma once

namespace causeway::core {

// Does nothing. The definition is a separate object of the library, so that a test program can link its own definition
// instead, and kill the process at a point named by its environment. Called on the thread that does the work.
void FaultPoint(const char* name);

}  // namespace causeway::core
