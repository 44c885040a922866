// Text from a peer, a file or a command line: clipped or made printable before it is kept or shown, without its byte
// order mark, checked to be UTF-8. The one place where foreign text becomes printable; a peer's text does so where its
// message is read (transport/read_message.h).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace causeway::core {

// `text` if it has at most `most_bytes`; else as much of it as fits before "…", up to the boundary of a UTF-8
// character. `most_bytes` is at least 3.
std::string Clipped(std::string_view text, size_t most_bytes);

// `text` with its control characters, those that turn the direction of writing, and bytes that are no UTF-8 written as
// \r, \x1b, \u202e, …, since printed as they are they rewrite what a terminal shows. Line breaks and tabs stay.
std::string Printable(std::string_view text);

// As Printable, but a line break is written as \n and a tab as \t, too, so that a text stays within its line.
std::string InOneLine(std::string_view text);
std::string Quoted(std::string_view text);  // InOneLine between quotes: 'eu\r'
std::string Shown(std::string_view text);   // InOneLine as part of a message, which stays short: cut at 200 bytes

// How many bytes to add, drop or change to make one text the other (Levenshtein).
size_t EditDistance(const std::string& a, const std::string& b);

// Editors of Windows begin UTF-8 files with the bytes EF BB BF, which no reader of a format wants.
std::string_view WithoutByteOrderMark(std::string_view text);

// How many bytes from the beginning are UTF-8: all of them, or as far as the first character that is none (RFC 3629: no
// surrogates, nothing overlong, nothing above U+10FFFF).
size_t Utf8Bytes(std::string_view text);

// A character that the end of the text cuts off, as `head -c` does, counts as UTF-8 here; also the rest of one at the
// beginning.
size_t Utf8BytesOfPart(std::string_view text);

// Where byte `offset` of a text stands, both counted from 1; columns are characters.
struct TextPlace {
  size_t line = 1, column = 1;
};
TextPlace PlaceInText(std::string_view text, size_t offset);

}  // namespace causeway::core
