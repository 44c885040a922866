// GET /events: the board's texts as server-sent events (https://html.spec.whatwg.org, section 9.2).
//
//   each full second ─► event: status    each even one ─► event: timeline    the same text to all streams
//                                        neither is new ─► a comment, which detects a reader that is gone
//
// A stream never sends the same page of the board twice: one that begins shortly before a full second would find the
// same page again.
//
// A stream runs on the thread of its connection and sleeps until the next second. Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "core/mutex.h"
#include "server/status/status_board.h"

namespace causeway::server {

class EventStreams {
 public:
  EventStreams(StatusBoard* board, int most) : board_(board), most_(most) {}

  // Writes to the reader; false if it is gone or does not read.
  using Write = std::function<bool(std::string_view)>;

  class Stream {
   public:
    explicit Stream(EventStreams* streams) : streams_(streams) {}
    ~Stream();
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    // Waits until there is something to send (the first call does not wait) and sends it. False: the stream is over.
    bool Next(const Write& write);

   private:
    EventStreams* const streams_;
    int64_t second_ = 0;  // the last one sent; 0: none
    SharedText status_;   // the last texts sent; nullptr: none
    SharedText timeline_;
  };

  std::unique_ptr<Stream> Open();  // nullptr: the limit is reached
  void Stop();                     // ends all streams

 private:
  int64_t WaitForSecondAfter(int64_t second);  // 0: stopping

  StatusBoard* const board_;
  const int most_;
  core::Mutex mutex_;
  core::Condition changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace causeway::server
