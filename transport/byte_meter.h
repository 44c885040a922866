// Counts payload bytes of one direction of one site, and how fast they come. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>

namespace causeway::transport {

class ByteMeter {
 public:
  void Add(int64_t bytes) { total_.fetch_add(bytes, std::memory_order_relaxed); }
  int64_t total() const { return total_.load(std::memory_order_relaxed); }

  // Called about once a second: takes the rate since the last call, smoothed over a few of them.
  void Sample(int64_t now_ms);
  double bytes_per_s() const { return rate_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> total_{0};
  std::atomic<double> rate_{0};
  int64_t sampled_total_ = 0;  // of the sampling thread alone
  int64_t sampled_at_ms_ = 0;
};

}  // namespace causeway::transport
