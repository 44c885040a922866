// Gradients summed over the ranks of a group while backward goes on.
//
//   backward ─► values from the end to the front are final ─► buckets of 25 MB ─► all-reduce, during backward
//                                                                                     │
//   Finish ◄── gradients are the sums ◄───────────────────────────────────────────────┘
//
// Gradients lie in one array in manifest order, and backward reaches their ends first (the head or the norm; the
// embedding, tied or not, comes last), so that a bucket is a range of that array and is reduced in place. Sums have the
// order of the ranks, so that buckets change no bit. One owner thread. Source: Li et al., "PyTorch Distributed:
// Experiences on Accelerating Data Parallel Training" (arXiv 2006.15704), section 3.2.3.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "worker/ranks/collectives.h"

namespace causeway::worker {

class GradientBuckets {
 public:
  static constexpr int64_t kBytes = int64_t{25} << 20;

  // `group` outlives it; null: one rank, and all of this is a no-op.
  GradientBuckets(Collectives* group, Collectives::Timeout timeout, int64_t bytes = kBytes)
      : group_(group), timeout_(timeout), bucket_values_(bytes / static_cast<int64_t>(sizeof(float))) {}

  // A step's gradients, none of which is final yet. They stay until Finish.
  void Begin(std::span<float> gradients);
  // The values from `first` on are final: reduces the full buckets.
  void FinalFrom(int64_t first);
  // All are final: returns when they are the sums over the ranks. Errors as the group's.
  absl::Status Finish();

 private:
  Collectives* const group_;
  const Collectives::Timeout timeout_;
  const int64_t bucket_values_;
  std::span<float> gradients_;
  int64_t reduced_from_ = 0;  // the values from here on have been handed over
  Collectives::Ticket last_ = 0;
};

}  // namespace causeway::worker
