#include "core/ids.h"

#include <algorithm>

namespace causeway::core {

bool IsValidName(const std::string& name) {
  constexpr size_t kLongestName = 64;  // fits a file name, a metric label and one column of a table
  if (name.empty() || name.size() > kLongestName || name[0] == '.') return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
  });
}

}  // namespace causeway::core
