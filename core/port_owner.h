// Which program listens on a port of this machine, for a message that says why a port cannot be had.
//
//   /proc/net/tcp, tcp6: listening sockets and their inodes ─► /proc/PID/fd: the program that holds one
#pragma once

#include <string>

namespace causeway::core {

// "causeway-coordinator (pid 4711)"; empty where no program does, or it belongs to a user whom we may not look at.
std::string OwnerOfPort(int port);

// Why listening on `address` (HOST:PORT) failed, as a sentence.
std::string WhyNotListening(const std::string& address, int port);

}  // namespace causeway::core
