#include "server/status/http_server.h"

#include <httplib.h>

#include <thread>

#include "absl/strings/str_cat.h"

namespace causeway::server {
namespace {

// Instead of the library's SO_REUSEPORT, which lets two programs share a port: each would answer half of the requests.
void RefuseTakenPort(socket_t socket) {
  const int yes = 1;
  setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);  // a port that was left a moment ago is free
}

class HttplibServer final : public HttpServer {
 public:
  ~HttplibServer() override {
    server_.stop();
    if (thread_.joinable()) thread_.join();
  }

  absl::Status Listen(const std::string& host, int port, std::function<std::string()> status_json) {
    server_.Get("/status", [status_json](const httplib::Request&, httplib::Response& response) {
      response.set_content(status_json(), "application/json");
    });
    server_.Get("/", [](const httplib::Request&, httplib::Response& response) { response.set_redirect("/status"); });
    server_.set_socket_options(RefuseTakenPort);
    port_ = port == 0 ? server_.bind_to_any_port(host.c_str()) : (server_.bind_to_port(host.c_str(), port) ? port : -1);
    if (port_ <= 0) {
      return absl::UnavailableError(absl::StrCat("--http: cannot listen on ", host, ":", port,
                                                 "; is the port taken, or not this machine's address?"));
    }
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    while (!server_.is_running()) std::this_thread::yield();  // stop() before that would be forgotten
    return absl::OkStatus();
  }

  int port() const override { return port_; }

 private:
  httplib::Server server_;
  int port_ = 0;
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& host, int port,
                                                              std::function<std::string()> status_json) {
  auto server = std::make_unique<HttplibServer>();
  if (absl::Status status = server->Listen(host, port, std::move(status_json)); !status.ok()) return status;
  return server;
}

}  // namespace causeway::server
