// Measures a site's link from its transfers, and determines over how many TCP connections a transfer should go.
//
//   bytes and seconds of transfers ─┐
//   round trips of pings ───────────┴─► rate × round trip ─► connections
//
// One connection moves one kernel buffer per round trip; with Linux's default buffers that is about 2.8 MB. So a link
// takes ceil(rate · round trip / 2.8 MB) connections, at most 16. The rate was measured over the connections there
// were, so a quarter more is allowed for: where they are the limit, their number grows. And where several sites share a
// link, the share of a single flow is a matter of luck for seconds at a time: so up to four connections are used, as
// long as each has 1 MB/s. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>

#include "core/limits.h"
#include "core/membership.h"
#include "core/mutex.h"
#include "core/progress.h"

namespace causeway::transport {

// Counts the payload bytes of one site in one direction, and measures their rate. Thread-safe.

class ByteMeter {
 public:
  void Add(int64_t bytes) { total_.fetch_add(bytes, std::memory_order_relaxed); }
  int64_t total() const { return total_.load(std::memory_order_relaxed); }

  // To be called about once a second: measures the rate since the last call, smoothed over a few calls.
  void Sample(int64_t now_ms);
  double bytes_per_s() const { return rate_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> total_{0};
  std::atomic<double> rate_{0};
  int64_t sampled_total_ = 0;  // used by the sampling thread alone
  int64_t sampled_at_ms_ = 0;
};

inline constexpr int kDefaultChannels = 4;  // while nothing is measured
inline constexpr int kMaxChannels = core::kMaxStripes;
inline constexpr double kRoomToGrow = 1.25;  // if connections or buffers are the limit, the link has more

int ChannelsFor(double bytes_per_s, double round_trip_s);  // to fill the link, without room to grow

class LinkMeter {
 public:
  enum class Direction { kUp, kDown };

  // A transfer moved `bytes` in `seconds`. Short transfers say more about latency than about the rate: they count only
  // as a lower bound on the link's rate.
  void Moved(Direction direction, int64_t bytes, double seconds);
  // The same for a time in which the other end worked as well: counts like a short transfer.
  void MovedAtLeast(Direction direction, int64_t bytes, double seconds);
  void RoundTrip(double seconds);

  int channels() const;
  // The same under a rate limit; 0: none. As many as the limit needs: each connection of a download takes a window's
  // worth ahead of its turn, so one too many costs more than without a limit.
  int ChannelsWithin(double held_bytes_per_s) const;
  core::LinkProgress progress() const;
  double round_trip_s() const;  // the shortest of the last ones; 0 = none yet

 private:
  // Bytes and seconds are averaged separately: one transfer that passed through a buffer instantly must not hide that
  // others take long, as it would in the mean of the quotients.
  class Rate {
   public:
    void Add(int64_t moved, double seconds);
    double bytes_per_s() const { return seconds_ == 0 ? 0 : bytes_ / seconds_; }

   private:
    double bytes_ = 0;
    double seconds_ = 0;
  };

  void Choose() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  double ShortestTrip() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable core::Mutex mutex_;
  Rate up_ ABSL_GUARDED_BY(mutex_), down_ ABSL_GUARDED_BY(mutex_);
  Rate least_up_ ABSL_GUARDED_BY(mutex_), least_down_ ABSL_GUARDED_BY(mutex_);
  std::deque<double> trips_ ABSL_GUARDED_BY(mutex_);
  std::deque<int> wanted_ ABSL_GUARDED_BY(mutex_);  // by the last measurements; the maximum counts
};

}  // namespace causeway::transport
