// Why a port cannot be listened on: the libraries that listen keep the reason to themselves.
#pragma once

#include <string>

namespace causeway::core {

// A sentence that begins with the address, after listening there has failed.
std::string WhyNotListening(const std::string& host, int port);

}  // namespace causeway::core
