#include "server/status/json_writer.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace causeway::server {

void JsonWriter::Value(std::string_view text) {
  const bool plain = std::ranges::all_of(text, [](char c) { return c >= ' ' && c < '\x7f' && c != '"' && c != '\\'; });
  if (!plain) {
    using nlohmann::json;
    return Raw(json(std::string(text)).dump(-1, ' ', false, json::error_handler_t::replace));
  }
  Separate();
  text_.append("\"").append(text).append("\"");
  separate_ = true;
}

}  // namespace causeway::server
