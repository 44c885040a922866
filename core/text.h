// Text from a peer, a file or a command line, before it is kept or shown.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace causeway::core {

// `text` if it has at most `most_bytes`; else as much of it as fits before "…", up to the boundary of a UTF-8
// character. `most_bytes` is at least 3.
std::string Clipped(std::string_view text, size_t most_bytes);

// `text` with its control characters written as \r, \x1b, …, since printed as they are they rewrite what a terminal
// shows. Line breaks and tabs stay.
std::string Printable(std::string_view text);

// The same of a name or a value between quotes, where a line break is written as \n and a tab as \t, too: 'eu\r'.
std::string Quoted(std::string_view text);

}  // namespace causeway::core
