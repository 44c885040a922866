// Standard input, output and error of a program, as its caller may leave them: closed, a pipe that is read no
// longer, a full disk.
#pragma once

namespace causeway::ctl {

// Ignores SIGPIPE, so that a reader that has gone ends no program, and SIGXFSZ, so that a file that would be longer
// than `ulimit -f` allows is an error of its writer. In a program that calls it, those of the three that are
// closed are opened on /dev/null before anything else happens, so that no file or connection takes their numbers and
// then gets what is meant for them. REQUIRES: it is main's first call.
void PrepareStandardStreams();

// Writes what was printed, and says whether all of it so far has reached standard output: false, with errno of the
// first cause or 0, if not.
bool FlushStandardOutput();

// Whether `path` leads to the same file, pipe or device as standard output.
bool IsStandardOutput(const char* path);

}  // namespace causeway::ctl
