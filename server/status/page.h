// The status page, the answer to GET /.
//
//   server/status/page/{index.html, page.css, *.js} ── embed.cmake, at build time ──► one HTML text in the program
//
// The text is the same for every run and never changes while the program runs: the browser fetches the figures from GET
// /events, /status and /timeline. The page requests only those three, from its own server. Thread-safe.
#pragma once

#include <string>

namespace causeway::server {

// UTF-8, to be sent as "text/html; charset=utf-8".
const std::string& PageHtml();

}  // namespace causeway::server
