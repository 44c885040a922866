#include "core/text.h"

#include "core/check.h"

namespace causeway::core {

std::string Clipped(std::string_view text, size_t most_bytes) {
  constexpr std::string_view kCut = "…";
  CHECK(most_bytes >= kCut.size());
  if (text.size() <= most_bytes) return std::string(text);
  size_t end = most_bytes - kCut.size();
  const auto continues = [&](size_t at) { return (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80; };
  while (end > 0 && continues(end)) --end;
  return std::string(text.substr(0, end)).append(kCut);
}

}  // namespace causeway::core
