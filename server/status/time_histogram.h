// Durations in seconds, counted in buckets, for a Prometheus histogram. Plain values; one owner at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace causeway::server {

struct TimeHistogram {
  // From a merge of a small fragment to a transfer of a large one over a slow link; powers of about 2.5.
  static constexpr std::array<double, 15> kUpperBounds = {0.001, 0.0025, 0.01, 0.025, 0.1, 0.25, 0.5, 1,
                                                          2.5,   5,      10,   30,    60,  120,  300};

  std::array<uint64_t, kUpperBounds.size() + 1> counts{};  // per bucket, not cumulative; the last is beyond all bounds
  double sum = 0;

  void Add(double seconds) {
    size_t bucket = 0;
    while (bucket < kUpperBounds.size() && seconds > kUpperBounds[bucket]) ++bucket;
    ++counts[bucket];
    sum += seconds;
  }
};

// The durations that a coordinator measures.
struct RunTimes {
  TimeHistogram rounds;  // from the first chunk of a contribution until the round was decided
  TimeHistogram merges;
  TimeHistogram up;    // one fragment's payload, from the first chunk until admitted
  TimeHistogram down;  // from the first byte until the site's last stream finished
};

}  // namespace causeway::server
