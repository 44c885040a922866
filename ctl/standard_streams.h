// Standard input, output and error of a program, as its caller may leave them: closed, a pipe that is read no
// longer, a full disk.
#pragma once

namespace causeway::ctl {

// Opens those of the three on /dev/null that are closed, so that no file or connection takes their numbers and then
// gets what is meant for them; and ignores SIGPIPE, so that a reader that has gone ends no program. Call first in main.
void PrepareStandardStreams();

// Whether everything that was printed has reached standard output. False, with errno of the cause or 0, if not.
bool FlushStandardOutput();

// Whether `path` leads to the same file, pipe or device as standard output.
bool IsStandardOutput(const char* path);

}  // namespace causeway::ctl
