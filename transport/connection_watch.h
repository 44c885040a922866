// Finds bulk connections that died without a word: a firewall forgot the flow, a proxy or a virtual machine is gone.
// TCP says so after minutes, if ever, because there is nothing to send, or because someone in between goes on
// acknowledging. So what counts is what the coordinator's program says and takes.
//
//   down   a message on any stream of the connection; a stream that waits hears a Beat every `beat_ms`
//   up     a message that gRPC took, or that the coordinator has received as its Beats say, while some are on their way
//
// A connection with work that carries nothing for kLeastSilence is dead. A chunk of a slow link takes longer, in one
// message: where chunks are on their way, the time allowed follows from what the last chunks took on this link, and is
// kMostSilence before there was any. On a link that becomes slow for good, a connection may be made anew until longer
// times are known.
//
// Thread-safe. Times are the caller's microseconds.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/membership.h"
#include "core/mutex.h"
#include "core/progress.h"

namespace causeway::transport {

class ConnectionWatch {
 public:
  static constexpr int64_t kLeastSilenceUs = 6'000'000;  // three beats: a lost packet or two, and a new connection
  static constexpr int64_t kMostSilenceUs = 60'000'000;  // keepalive ends the connection after 65 s
  static constexpr int kTimesMedian = 4;
  static constexpr int kTimesLongest = 2;  // a congested link with losses has chunks that take ten times the median
  static constexpr size_t kKeptTimes = 60;

  // A stream of a connection, for as long as the call lives.
  class Stream {
   public:
    Stream(ConnectionWatch* watch, int connection, int64_t now_us);
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;
    ~Stream();

    void Heard(bool chunk, int64_t now_us);      // a message has come
    void ExpectsChunks(bool expects);            // whether the next message may be a chunk
    void Sends(int64_t now_us);                  // a message is being sent from here on
    void Taken(int64_t now_us);                  // gRPC has taken the message before
    void Arrived(int64_t sent, int64_t now_us);  // the coordinator has `sent` of the stream's messages
    void Pauses(int64_t until_us);               // the stream waits for its turn, where the site's rate is limited

   private:
    friend class ConnectionWatch;
    ConnectionWatch* const watch_;
    const int connection_;
    bool replaced_ = false;  // the connection that it is on was replaced
    bool expects_chunks_ = false;
    int64_t sent_ = 0;  // messages sent; the first one is small: a header or a request
    int64_t arrived_ = 0;
  };

  std::unique_ptr<Stream> Open(int connection, int64_t now_us);

  // Begins to watch: the coordinator sends a Beat every `beat_ms`; 0: it sends none, and no dead connection is found.
  void Begin(int64_t beat_ms);

  // Connections that are to be made anew, because one of them is dead: those that carry nothing, and idle ones, which
  // are as likely to be dead. They count as new from here on.
  struct Dead {
    std::vector<int> connections;
    std::string why;
  };
  Dead TakeDead(int64_t now_us);
  // The control connection was lost; once it is back, TakeSuspects returns those that were not heard in the last beats.
  void ControlLost();
  Dead TakeSuspects(int64_t now_us);

  core::LinkProgress AddTo(core::LinkProgress progress, int64_t now_us) const;  // adds what it knows of the link

 private:
  // How long one of the last chunks of a way took (`came`), or how long a connection was silent before it died.
  struct Took {
    int64_t us = 0;
    bool came = false;
  };
  using Way = std::deque<Took>;
  struct Connection {
    std::vector<Stream*> streams;
    int64_t heard_us = 0;
    int64_t moved_us = 0;
  };

  struct Silence {
    enum Kind { kNone, kSmall, kChunksDown, kChunksUp } kind = kNone;  // which messages are missing
    int64_t us = 0;
    int64_t allowed_us = 0;
  };
  Silence SilenceOf(const Connection& connection, int64_t now_us) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int64_t LeastUs() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int64_t AllowedUs(const Way& way) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void Note(Way& way, int64_t us, bool came);
  void Replace(Connection& connection, int64_t now_us) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static bool HasOnTheWay(const Connection& connection);
  static bool HasChunksOnTheWay(const Connection& connection);
  static bool ExpectsChunks(const Connection& connection);

  mutable core::Mutex mutex_;
  std::map<int, Connection> connections_ ABSL_GUARDED_BY(mutex_);  // all connections that were ever used
  int64_t beat_us_ ABSL_GUARDED_BY(mutex_) = 0;
  Way up_ ABSL_GUARDED_BY(mutex_), down_ ABSL_GUARDED_BY(mutex_);
  bool control_lost_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t redials_ ABSL_GUARDED_BY(mutex_) = 0;  // dead connections with work
};

}  // namespace causeway::transport
