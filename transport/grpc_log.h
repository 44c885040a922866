// gRPC's own lines, such as handshakes that fail, and protobuf's of text that is none, in our log and no more often
// than a person can read: otherwise a stranger who reaches the port could fill the disk.
#pragma once

namespace causeway::transport {

// From here on, for the whole process. May be called again, from any thread.
void RouteGrpcLog();

}  // namespace causeway::transport
