// cpp-httplib's server with a budget. The library gives each byte of a request its own time, so that a sender of one
// byte a second holds a thread for ever, and lets connections without number wait for a thread.
//
//   connection ── more than may be open ──► 503, unread
//        └──► thread of the pool ── request within kRequestTime ──► handler ── answer within kAnswerTime ──► closed
//
// Each connection has one request.
#pragma once

#include <httplib.h>

#include <chrono>

namespace causeway::server {

inline constexpr std::chrono::seconds kRequestTime{5};  // to be whole; it is one packet
inline constexpr std::chrono::seconds kAnswerTime{30};  // to be taken: a phone's link may be slow
inline constexpr std::chrono::seconds kStallTime{5};    // without any progress, also of a stream of events

class BudgetedHttpServer : public httplib::Server {
 public:
  // `threads` serve a connection each; as many others as `waiting` wait for one.
  BudgetedHttpServer(int threads, int waiting);

  // To be called by a handler: its answer is a stream without an end, bounded by kStallTime alone.
  static void AnswerHasNoEnd();

 private:
  bool process_and_close_socket(socket_t socket) override;
};

}  // namespace causeway::server
