#include "server/status/http_server.h"

#include <httplib.h>
#include <openssl/evp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "core/address.h"
#include "core/clock.h"
#include "core/listen_failure.h"
#include "core/text.h"
#include "core/thread.h"
#include "server/status/event_streams.h"
#include "server/status/metrics_text.h"
#include "server/status/page.h"

namespace causeway::server {
namespace {

constexpr char kHeader[] = "Host";

// Without its port; "" if it is no host.
std::string NameOf(const std::string& host) {
  auto address = core::ParseAddress(kHeader, host);
  if (!address.ok()) address = core::ParseAddress(kHeader, host + ":80");
  return address.ok() ? address->host : "";
}

// cpp-httplib's server with a budget. The library's read timeout applies to each byte, so that a client which sends one
// byte a second holds a thread forever, and any number of connections may wait for a thread.
//
//   connection ── more than may be open ──► 503, unread
//        └──► thread of the pool ── request within kRequestTime ──► handler ── answer within kAnswerTime ──► closed
//
// Each connection has one request.

inline constexpr std::chrono::seconds kRequestTime{5};  // to arrive in full; it is one packet
inline constexpr std::chrono::seconds kAnswerTime{30};  // to be read: a phone's link may be slow
inline constexpr std::chrono::seconds kStallTime{5};    // without any progress, also for an event stream

class BudgetedHttpServer : public httplib::Server {
 public:
  // Each of `threads` serves one connection; up to `waiting` further connections wait for a thread.
  BudgetedHttpServer(int threads, int waiting);

  // To be called by a handler whose answer is an endless stream, bounded by kStallTime alone.
  static void AnswerHasNoEnd();

 private:
  bool process_and_close_socket(socket_t socket) override;
  // The library has no public way to serve a connection from a stream of ours: its own differs between versions.
  template <typename Stream>
  bool Process(Stream& stream) {
    bool closed = false;
    if constexpr (requires { process_request(stream, true, closed, nullptr); }) {  // 0.11, Debian 12
      return process_request(stream, /*close_connection=*/true, closed, nullptr);
    } else {  // 0.18, Debian 13: addresses and ports of both ends, which are not asked for
      return process_request(stream, "", 0, "", 0, /*close_connection=*/true, closed, nullptr);
    }
  }
};

using core::Clock;

constexpr std::string_view kBusy =
    "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 2\r\nConnection: close\r\nContent-Type: text/plain\r\n"
    "Content-Length: 43\r\n\r\ntoo many connections are open; try it later";

// A connection, in httplib's interface for reading and writing.
class TimedStream final : public httplib::Stream {
 public:
  explicit TimedStream(socket_t socket) : socket_(socket), until_(Now() + kRequestTime) {}

  void EndWithin(Clock::Duration time) { until_ = Now() + time; }
  void HasNoEnd() { until_ = Clock::TimePoint::max(); }

  bool is_readable() const override { return read_ < buffered_ || Await(POLLIN); }
  // Also false once the peer has closed: a stream of events would not notice otherwise.
  bool is_writable() const override {
    if (!Await(POLLOUT)) return false;
    char byte = 0;
    const ssize_t got = ::recv(socket_, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return got > 0 || (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR));
  }

  ssize_t read(char* out, size_t size) override {
    if (read_ == buffered_) {
      if (!Await(POLLIN)) return -1;
      const ssize_t got = ::recv(socket_, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
      if (got <= 0) return got;
      read_ = 0;
      buffered_ = static_cast<size_t>(got);
    }
    const size_t taken = std::min(size, buffered_ - read_);
    std::memcpy(out, buffer_.data() + read_, taken);
    read_ += taken;
    return static_cast<ssize_t>(taken);
  }
  ssize_t write(const char* bytes, size_t size) override {
    if (!std::exchange(answering_, true) && until_ != Clock::TimePoint::max()) EndWithin(kAnswerTime);
    return Await(POLLOUT) ? ::send(socket_, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL) : -1;
  }

  // Addresses are not requested.
  void get_remote_ip_and_port(std::string&, int&) const override {}
  void get_local_ip_and_port(std::string&, int&) const override {}
  socket_t socket() const override { return socket_; }

 private:
  static Clock::TimePoint Now() { return core::SystemClock().Now(); }

  bool Await(short events) const {
    const Clock::Duration left = std::min<Clock::Duration>(until_ - Now(), kStallTime);
    const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
    pollfd one{.fd = socket_, .events = events, .revents = 0};
    return ms > 0 && ::poll(&one, 1, static_cast<int>(ms)) > 0;
  }

  const socket_t socket_;
  Clock::TimePoint until_;
  bool answering_ = false;
  std::array<char, 4096> buffer_;
  size_t read_ = 0;
  size_t buffered_ = 0;
};

thread_local TimedStream* served = nullptr;  // by this thread
thread_local bool refuses = false;

// Runs connections beyond the budget at once, on the accepting thread.
class BudgetedPool final : public httplib::TaskQueue {
 public:
  BudgetedPool(int threads, int most) : pool_(threads), most_(most) {}

  // Whether it was taken, where the library asks: version 0.11 does not.
  using Taken = decltype(std::declval<httplib::TaskQueue&>().enqueue(std::function<void()>()));

  Taken enqueue(std::function<void()> serve) override {
    if (++open_ <= most_) {
      pool_.enqueue([this, serve = std::move(serve)] {
        serve();
        --open_;
      });
    } else {
      refuses = true;
      serve();
      refuses = false;
      --open_;
    }
    return static_cast<Taken>(true);
  }
  void shutdown() override { pool_.shutdown(); }

 private:
  httplib::ThreadPool pool_;
  const int most_;
  std::atomic<int> open_ = 0;
};

// Its request is read as far as it has arrived: closed with bytes unread, the connection would be reset, and the
// answer lost.
void Refuse(socket_t socket) {
  (void)::send(socket, kBusy.data(), kBusy.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  ::shutdown(socket, SHUT_WR);
  std::array<char, 4096> unread;
  (void)::recv(socket, unread.data(), unread.size(), MSG_DONTWAIT);
}

BudgetedHttpServer::BudgetedHttpServer(int threads, int waiting) {
  new_task_queue = [threads, waiting] { return new BudgetedPool(threads, threads + waiting); };
}

void BudgetedHttpServer::AnswerHasNoEnd() { served->HasNoEnd(); }

bool BudgetedHttpServer::process_and_close_socket(socket_t socket) {
  bool answered = false;
  if (refuses) {
    Refuse(socket);
  } else {
    TimedStream stream(socket);
    served = &stream;
    answered = Process(stream);
    served = nullptr;
    ::shutdown(socket, SHUT_RDWR);
  }
  ::close(socket);
  return answered;
}

constexpr int kBacklog = 256;  // the library's is 5: the sixth page that opens at once would wait for a second
// The kernel's usual limit (net.core.wmem_max), which it doubles: an answer of 200 kB fits whole.
constexpr int kSendBufferBytes = 212'992;
constexpr size_t kMostHostCharacters = 100;  // in messages

// Hashes of the page's scripts, so that no other script runs, whatever a name on the page contains.
std::string ScriptSources(std::string_view html) {
  constexpr std::string_view kBegin = "<script>", kEnd = "</script>";
  std::string sources;
  for (size_t at = html.find(kBegin); at != std::string_view::npos; at = html.find(kBegin, at)) {
    at += kBegin.size();
    const std::string_view script = html.substr(at, html.find(kEnd, at) - at);
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int size = 0;
    EVP_Digest(script.data(), script.size(), digest, &size, EVP_sha256(), nullptr);
    const absl::string_view bytes(reinterpret_cast<const char*>(digest), size);
    absl::StrAppend(&sources, " 'sha256-", absl::Base64Escape(bytes), "'");
  }
  return sources.empty() ? " 'none'" : sources;
}

httplib::Headers SecurityHeaders() {
  return {{"Content-Security-Policy",
           absl::StrCat("default-src 'none'; connect-src 'self'; img-src data:; style-src 'unsafe-inline'; script-src",
                        ScriptSources(PageHtml()), "; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")},
          {"Cache-Control", "no-store"},
          {"Referrer-Policy", "no-referrer"},
          {"X-Content-Type-Options", "nosniff"}};
}

// Answers with a text of the board, or that there is none yet. Does not use set_content, which copies the text, and
// compresses it anew for every poll that accepts gzip, which would dominate a poll.
void Respond(const SharedText& text, const char* content_type, httplib::Response& response) {
  if (text != nullptr) {
    return response.set_content_provider(text->size(), content_type,
                                         [text](size_t offset, size_t length, httplib::DataSink& sink) {
                                           return sink.write(text->data() + offset, length);
                                         });
  }
  response.status = 503;
  response.set_header("Retry-After", "1");
  response.set_content("the coordinator starts\n", "text/plain");
}

void Respond(const Answer& answer, httplib::Response& response) {
  response.status = answer.ok ? 200 : 503;
  response.set_content(answer.ok ? "ok\n" : answer.reason + "\n", "text/plain");
}

class HttplibServer final : public HttpServer {
 public:
  HttplibServer(StatusBoard* board, Serves serves, const std::vector<std::string>& hosts)
      : board_(board),
        serves_(serves),
        hosts_(hosts),
        streams_(board, kMaxEventStreams),
        server_(serves == Serves::kAll ? kMaxEventStreams + kRequestThreads : kProbeThreads, kWaitingConnections) {}

  ~HttplibServer() override {
    streams_.Stop();
    server_.stop();
    if (thread_.joinable()) thread_.Join();
  }

  absl::Status Listen(const std::string& host, int port) {
    const bool all = serves_ == Serves::kAll;
    RouteProbes();
    if (all) Route();
    server_.set_default_headers(SecurityHeaders());
    server_.set_pre_routing_handler([this](const Request& request, Response& response) {
      // The library answers as many ranges as one asks for. It hands out its own request, which is not constant.
      const_cast<Request&>(request).ranges.clear();
      return IsForUs(request, response) ? Handled::Unhandled : Handled::Handled;
    });
    server_.set_payload_max_length(1024);
    server_.set_tcp_nodelay(true);
    server_.set_socket_options([this](socket_t socket) { PrepareSocket(socket); });
    port_ = port == 0 ? server_.bind_to_any_port(host.c_str()) : (server_.bind_to_port(host.c_str(), port) ? port : -1);
    if (port_ <= 0 || ::listen(socket_, kBacklog) != 0) {
      return absl::UnavailableError(absl::StrCat(all ? "--http" : "--health", ": ", core::WhyNotListening(host, port)));
    }
    thread_ = core::Thread([this] { server_.listen_after_bind(); });
    while (!server_.is_running()) std::this_thread::yield();  // an earlier stop() would be lost
    return absl::OkStatus();
  }

  int port() const override { return port_; }

 private:
  // Instead of the library's SO_REUSEPORT, which lets two programs share a port: each would answer half of the
  // requests.
  void PrepareSocket(socket_t socket) {
    socket_ = socket;
    const int yes = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);  // a port released a moment ago can be reused
    setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &kSendBufferBytes, sizeof kSendBufferBytes);  // connections inherit it
  }

  using Request = httplib::Request;
  using Response = httplib::Response;
  using Handled = httplib::Server::HandlerResponse;

  bool IsForUs(const Request& request, Response& response) const {
    if (!request.has_header("Host")) return true;  // HTTP 1.0; no browser
    const std::string host = request.get_header_value("Host");
    if (hosts_.Allows(host)) return true;
    response.status = 421;  // Misdirected Request
    response.set_content(absl::StrCat("Host: expected an address, localhost or one of --http_hosts, got ",
                                      core::Quoted(host.substr(0, kMostHostCharacters)), "\n"),
                         "text/plain");
    return false;
  }

  void RouteProbes() {
    server_.Get("/healthz", [this](const Request&, Response& response) { Respond(board_->Healthy(), response); });
    server_.Get("/readyz", [this](const Request&, Response& response) { Respond(board_->Ready(), response); });
  }

  void Route() {
    server_.Get(
        "/", [](const Request&, Response& response) { response.set_content(PageHtml(), "text/html; charset=utf-8"); });
    server_.Get("/status", [this](const Request& request, Response& response) {
      const bool full = request.get_param_value("details") == "full";
      Respond(board_->Status(full ? Details::kFull : Details::kAuto), "application/json", response);
    });
    server_.Get("/timeline", [this](const Request&, Response& response) {
      Respond(board_->Timeline(), "application/json", response);
    });
    server_.Get("/metrics", [this](const Request&, Response& response) {
      Respond(board_->Metrics(), kMetricsContentType, response);
    });
    server_.Get("/events", [this](const Request&, Response& response) { BeginEvents(response); });
  }

  // The stream ends with its connection, when the library releases the function.
  void BeginEvents(Response& response) {
    const std::shared_ptr<EventStreams::Stream> stream = streams_.Open();
    if (stream == nullptr) {
      response.status = 503;
      response.set_header("Retry-After", "2");
      response.set_content(absl::StrCat("there are ", kMaxEventStreams, " streams already; poll /status\n"),
                           "text/plain");
      return;
    }
    response.set_header("X-Accel-Buffering", "no");  // to proxies
    BudgetedHttpServer::AnswerHasNoEnd();
    response.set_chunked_content_provider("text/event-stream", [stream](size_t, httplib::DataSink& sink) {
      return stream->Next([&sink](std::string_view text) { return sink.write(text.data(), text.size()); });
    });
  }

  StatusBoard* const board_;
  const Serves serves_;
  const HttpHosts hosts_;
  EventStreams streams_;
  BudgetedHttpServer server_;
  socket_t socket_ = -1;  // on which it listens: the last one prepared
  int port_ = 0;
  core::Thread thread_;
};

}  // namespace

// The second is what Docker calls the host in its containers; no one can have .internal.
HttpHosts::HttpHosts(const std::vector<std::string>& names) : names_{"localhost", "host.docker.internal"} {
  for (const std::string& name : names) names_.insert(absl::AsciiStrToLower(name));
  std::array<char, 256> own = {};
  if (gethostname(own.data(), own.size() - 1) == 0) names_.insert(absl::AsciiStrToLower(own.data()));
}

bool HttpHosts::Allows(std::string_view host) const {
  std::string name = absl::AsciiStrToLower(NameOf(std::string(host)));
  if (name.ends_with('.')) name.pop_back();  // a whole name, as in DNS
  return core::IsNumericAddress(name) || names_.contains(name);
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& host, int port, StatusBoard* board,
                                                              Serves serves, const std::vector<std::string>& hosts) {
  auto server = std::make_unique<HttplibServer>(board, serves, hosts);
  if (absl::Status status = server->Listen(host, port); !status.ok()) return status;
  return server;
}

}  // namespace causeway::server
