// Which program listens on a port of this machine, for a message that says why a port cannot be had.
//
//   /proc/net/tcp, tcp6: listening sockets and their inodes ─► /proc/PID/fd: the program that holds one
#pragma once

#include <string>

namespace causeway::core {

// "causeway-coordinator (pid 4711)"; empty where no program does, or it belongs to a user whom we may not look at.
std::string OwnerOfPort(int port);

// Why listening there failed, as a sentence that begins with the address: who has the port, if the address is taken.
std::string WhyNotListening(const std::string& host, int port);

}  // namespace causeway::core
