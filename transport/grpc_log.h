// gRPC's own lines, such as handshakes that fail, in our log and no more often than a person can read: otherwise
// whoever can reach the port could fill the disk.
#pragma once

namespace causeway::transport {

// From here on, for the whole process. May be called again, from any thread.
void RouteGrpcLog();

}  // namespace causeway::transport
