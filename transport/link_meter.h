// What a site's transfers say about its link, and over how many TCP connections a transfer should go.
//
//   bytes and seconds of transfers ─┐
//   round trips of pings ───────────┴─► rate × round trip ─► connections
//
// One connection moves what the kernel buffers for it in a round trip; with Linux's default buffers that is about
// 2.8 MB. So a link takes ceil(rate · round trip / 2.8 MB) of them, at most 16. The rate is what came out of the
// connections there were, so a quarter more is allowed for: where they are the limit, their number grows. And where
// several sites share a link, what a single flow gets of it is a matter of luck that lasts for seconds: up to four are
// taken, as long as each has 1 MB/s. Thread-safe.
#pragma once

#include <cstdint>
#include <deque>

#include "core/limits.h"
#include "core/membership.h"
#include "core/mutex.h"

namespace causeway::transport {

inline constexpr int kDefaultChannels = 4;  // while nothing is measured
inline constexpr int kMaxChannels = core::kMaxStripes;
inline constexpr double kRoomToGrow = 1.25;  // where connections or buffers are the limit, the link has more

int ChannelsFor(double bytes_per_s, double round_trip_s);  // to fill the link, without room to grow

class LinkMeter {
 public:
  enum class Direction { kUp, kDown };

  // A transfer moved so many bytes in so many seconds. Short ones say more about latency than about the rate: they
  // count for what the link has at least, and for nothing else.
  void Moved(Direction direction, int64_t bytes, double seconds);
  // The same, where the other end worked meanwhile, too: counts like a short one.
  void MovedAtLeast(Direction direction, int64_t bytes, double seconds);
  void RoundTrip(double seconds);

  int channels() const;
  // The same where a rate is held; 0: none is. As many as that takes: of a download each takes a window's worth ahead
  // of its turn, so one too many costs more than where nothing is held.
  int ChannelsWithin(double held_bytes_per_s) const;
  core::LinkProgress progress() const;
  double round_trip_s() const;  // the shortest of the last ones; 0 = none yet

 private:
  // Bytes and seconds are averaged apart: one transfer that went through a buffer in no time must not hide that others
  // take long, as it would in the mean of their quotients.
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
  std::deque<int> wanted_ ABSL_GUARDED_BY(mutex_);  // by the last measurements; the most of them counts
};

}  // namespace causeway::transport
