// Routes gRPC's own log lines, such as failed handshakes, and protobuf's lines about invalid text to our log, no faster
// than a person can read: otherwise a stranger who reaches the port could fill the disk.
#pragma once

namespace causeway::transport {

// Takes effect from this call on, for the whole process. May be called again, from any thread.
void RouteGrpcLog();

}  // namespace causeway::transport
