#include "core/environment.h"

#include <cstdlib>

namespace causeway::core {

std::optional<std::string> ProcessEnvironment(const std::string& name) {
  const char* const value = std::getenv(name.c_str());
  if (value == nullptr) return std::nullopt;
  return value;
}

}  // namespace causeway::core
