// Clips text from a peer or a file before it is kept or shown.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace causeway::core {

// `text` if it has at most `most_bytes`; else as much of it as fits before "…", up to the boundary of a UTF-8
// character. `most_bytes` is at least 3.
std::string Clipped(std::string_view text, size_t most_bytes);

}  // namespace causeway::core
