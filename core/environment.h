// The process's environment as an argument, so that tests bring their own.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace causeway::core {

// A variable of the environment; none if it is not set.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;
std::optional<std::string> ProcessEnvironment(const std::string& name);

}  // namespace causeway::core
