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

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <deque>
#include <string>

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

int ChannelsFor(double bytes_per_s, double round_trip_s);  // connections that fill the link, without room to grow

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
  std::deque<int> wanted_ ABSL_GUARDED_BY(mutex_);  // connections by the last measurements; the maximum counts
};

// Limits the rate of transfers, so that a site's other traffic has room: determines when the next bytes may go. All
// transfers of a direction share one. At any time t after the first bytes, at most rate · t and one reservation have
// gone. Thread-safe.
class Pacer {
 public:
  explicit Pacer(double bytes_per_s) : bytes_per_s_(bytes_per_s) {}  // 0: as fast as it goes

  bool limits() const { return bytes_per_s_ > 0; }
  double bytes_per_s() const { return bytes_per_s_; }

  // The time at which `bytes` may start, in the caller's microseconds; now, if nothing is ahead of them. They count as
  // sent.
  int64_t Reserve(int64_t bytes, int64_t now_us) {
    if (!limits()) return now_us;
    core::MutexLock lock(mutex_);
    const int64_t start_ns = std::max(now_us * 1000, free_at_ns_);
    const double takes_ns = std::ceil(static_cast<double>(bytes) * 1e9 / bytes_per_s_);
    free_at_ns_ = start_ns + static_cast<int64_t>(std::min(takes_ns, static_cast<double>(kNeverNs - start_ns)));
    return (start_ns + 999) / 1000;
  }

 private:
  // Times are in nanoseconds, rounded up: many small messages would otherwise take no time at all.
  static constexpr int64_t kNeverNs = int64_t{1} << 62;  // in the next century

  const double bytes_per_s_;
  core::Mutex mutex_;
  int64_t free_at_ns_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Detects whether the kernel's TCP buffers limit a site's link, and says what to do then.
//
//   rate × round trip ÷ connections = each one's data in flight ─► buffer needed ─► above the kernel's maximum? say so
//
// The data in flight on a connection is limited by what its sender may keep unacknowledged (tcp_wmem) and its receiver
// may accept (tcp_rmem), part of which goes to the kernel's bookkeeping. Pure, except for ReadKernelBuffers and
// BufferAdviser.

// The three numbers of net.ipv4.tcp_wmem and tcp_rmem, in bytes; 0: unknown (not Linux).
struct BufferSizes {
  int64_t least = 0, initial = 0, most = 0;
};
struct KernelBuffers {
  BufferSizes write, read;
};

// "4096 16384 4194304"; zeros for any other text.
BufferSizes ParseBufferSizes(const std::string& text);
KernelBuffers ReadKernelBuffers();

// Names the sysctl to raise and its new value, for a link as measured; empty if there is nothing to raise.
std::string BufferAdvice(const core::LinkProgress& link, const KernelBuffers& buffers);

// Logs the advice, once per link. Thread-safe.
class BufferAdviser {
 public:
  void Look(const core::LinkProgress& link);

 private:
  std::atomic<bool> advised_ = false;
};

}  // namespace causeway::transport
