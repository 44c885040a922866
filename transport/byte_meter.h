// Counts the payload bytes of one site in one direction, and measures their rate. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>

namespace causeway::transport {

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

}  // namespace causeway::transport
