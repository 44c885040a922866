// Words that a peer or a file has given us, before they are kept or shown.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace causeway::core {

// `text` if it has at most `most_bytes`; else as much of it as fits before "…", up to the border of a UTF-8 character.
// `most_bytes` is 3 at least.
std::string Clipped(std::string_view text, size_t most_bytes);

}  // namespace causeway::core
