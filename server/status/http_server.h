// The coordinator's HTTP port: read-only, GET /status.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace causeway::server {

class HttpServer {
 public:
  // Listens on host:port (port 0: any) and answers GET /status with status_json(), called on the server's threads.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const std::string& host, int port,
                                                           std::function<std::string()> status_json);
  virtual ~HttpServer() = default;
  virtual int port() const = 0;
};

}  // namespace causeway::server
