// The status page: what GET / answers.
//
//   server/status/page/{index.html, page.css, *.js} ── embed.cmake, at build time ──► one HTML text in the program
//
// The text is the same for every run and never changes while the program runs: figures come to it from GET /events,
// /status and /timeline, in the browser. It asks for nothing but those three, from the server that it came from.
// Thread-safe.
#pragma once

#include <string>

namespace causeway::server {

// UTF-8, to be sent as "text/html; charset=utf-8".
const std::string& PageHtml();

}  // namespace causeway::server
