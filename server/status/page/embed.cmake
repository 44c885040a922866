# Puts the status page into one C++ file, so that the coordinator needs no files beside it.
#
#   cmake -DPAGE_DIR=server/status/page -DSCRIPTS="format.js;dom.js" -DOUT=page.cc -P embed.cmake
#
# index.html names where the style and the scripts go. The result is an array of bytes, not a string literal: compilers limit
# the length of those, and bytes need no escapes.
file(READ ${PAGE_DIR}/index.html html)
file(READ ${PAGE_DIR}/page.css style)

set(script "")
foreach(name IN LISTS SCRIPTS)
  file(READ ${PAGE_DIR}/${name} text)
  string(APPEND script "${text}\n")
endforeach()
if(script MATCHES "</script" OR style MATCHES "</style")
  message(FATAL_ERROR "the status page: a script or style that contains its own end tag would end there")
endif()

foreach(place "/* page.css */" "/* scripts */")
  string(FIND "${html}" "${place}" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "${PAGE_DIR}/index.html: expected a line ${place}")
  endif()
endforeach()
string(REPLACE "/* page.css */" "${style}" html "${html}")
string(REPLACE "/* scripts */" "${script}" html "${html}")

file(WRITE ${OUT}.html "${html}")  # for tests of the page without a coordinator
string(HEX "${html}" bytes)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
string(REPEAT "....." 16 line)  # 16 bytes to a line: compilers and people dislike a line of a megabyte
string(REGEX REPLACE "(${line})" "\\1\n" bytes "${bytes}")

file(WRITE ${OUT} "// Made by server/status/page/embed.cmake.
#include \"server/status/page.h\"

namespace causeway::server {
namespace {

constexpr unsigned char kPage[] = {
${bytes}};

}  // namespace

const std::string& PageHtml() {
  static const auto* page = new std::string(reinterpret_cast<const char*>(kPage), sizeof kPage);
  return *page;
}

}  // namespace causeway::server
")
