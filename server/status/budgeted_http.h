// cpp-httplib's server with a budget. The library's read timeout applies to each byte, so that a client which sends one
// byte a second holds a thread forever, and any number of connections may wait for a thread.
//
//   connection ── more than may be open ──► 503, unread
//        └──► thread of the pool ── request within kRequestTime ──► handler ── answer within kAnswerTime ──► closed
//
// Each connection has one request.
#pragma once

#include <httplib.h>

#include <chrono>

namespace causeway::server {

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
};

}  // namespace causeway::server
