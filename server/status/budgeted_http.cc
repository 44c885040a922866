#include "server/status/budgeted_http.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "core/clock.h"

namespace causeway::server {
namespace {

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

  void enqueue(std::function<void()> serve) override {
    if (++open_ <= most_) {
      pool_.enqueue([this, serve = std::move(serve)] {
        serve();
        --open_;
      });
      return;
    }
    refuses = true;
    serve();
    refuses = false;
    --open_;
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

}  // namespace

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
    bool closed = false;
    answered = process_request(stream, /*close_connection=*/true, closed, nullptr);
    served = nullptr;
    ::shutdown(socket, SHUT_RDWR);
  }
  ::close(socket);
  return answered;
}

}  // namespace causeway::server
