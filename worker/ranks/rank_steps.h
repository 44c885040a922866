// The steps of all ranks of a site: each one's loss, tokens and seconds, and the sums that all of them clip by.
//
// One owner thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/dtype.h"
#include "core/membership.h"
#include "core/progress.h"
#include "worker/ranks/collectives.h"

namespace causeway::worker {

// Gradients summed over the ranks of a group while backward goes on.
//
//   backward ─► values from the end to the front are final ─► buckets of 25 MB ─► all-reduce, during backward
//                                                                                     │
//   Finish ◄── gradients are the sums ◄───────────────────────────────────────────────┘
//
// Gradients lie in one array in manifest order, and backward reaches their ends first (the head or the norm; the
// embedding, tied or not, comes last), so that a bucket is a range of that array and is reduced in place. Sums have the
// order of the ranks, so that buckets change no bit. In bfloat16 a bucket crosses in two legs, of half the bytes in all:
// each rank's values of a range to the range's owner, which adds them in float32, and the sums to all. One owner thread.
// Source: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training" (arXiv 2006.15704),
// section 3.2.3.
class GradientBuckets {
 public:
  static constexpr int64_t kBytes = int64_t{25} << 20;

  // `group` outlives it; null: one rank, and all of this is a no-op. `crossing`: kFloat32, or kBfloat16 on the host.
  GradientBuckets(Collectives* group, Collectives::Timeout timeout, int64_t bytes = kBytes,
                  core::DType crossing = core::DType::kFloat32)
      : group_(group),
        timeout_(timeout),
        bucket_values_(bytes / static_cast<int64_t>(sizeof(float))),
        crossing_(crossing) {}

  // A step's gradients, none of which is final yet. They stay until Finish. Empty: none cross from now on.
  void Begin(std::span<float> gradients);
  // The values from `first` on are final: reduces the full buckets.
  void FinalFrom(int64_t first);
  // All are final: returns when they are the sums over the ranks. Errors as the group's.
  absl::Status Finish();

 private:
  // A bucket that crosses in bfloat16: as many values of each rank, the last ones' zero where there are no more.
  struct Narrow {
    std::span<float> gradients;
    size_t range = 0;                                 // values that a rank owns
    std::vector<uint16_t> parts, received, sum, all;  // bfloat16
    Collectives::Ticket ticket = 0;
  };
  void SendNarrow(std::span<float> gradients);
  absl::Status SumNarrow(Narrow& bucket);

  Collectives* const group_;
  const Collectives::Timeout timeout_;
  const int64_t bucket_values_;
  const core::DType crossing_;
  std::vector<Narrow> narrow_;  // their memory stays from one step to the next
  size_t narrow_sent_ = 0;
  std::span<float> gradients_;
  int64_t reduced_from_ = 0;  // the values from here on have been handed over
  Collectives::Ticket last_ = 0;
};

// The ranks of a trainer's site. Null `values`: it trains alone.
struct TrainerRanks {
  Collectives* values = nullptr;         // on the host; outlives the trainer
  Collectives* device_values = nullptr;  // the same ranks, for gradients in device memory; null: they are on the host
  int64_t hosts = 1;                     // number of hosts on which the ranks run
  double timeout_s = 600;                // how long the ranks wait for a silent one
  std::function<bool()> stop_requested = {};       // whether this rank was asked to stop
  int64_t bucket_bytes = GradientBuckets::kBytes;  // size of the gradients that are summed at once
  core::DType crossing = core::DType::kFloat32;    // of gradients between the ranks
  int devices = 1;  // a pipeline's devices: each has world ÷ devices ranks, with rows of their own

  Collectives* gradients() const { return device_values == nullptr ? values : device_values; }
  int rank() const { return values == nullptr ? 0 : values->rank(); }
  int world() const { return values == nullptr ? 1 : values->world(); }
  Collectives::Timeout timeout() const { return TimeoutOf(timeout_s); }
  // The number of ranks that share the rows of a batch, and this rank's number among them.
  int data_world() const { return world() / devices; }
  int data_rank() const { return rank() % data_world(); }
  // The factor of each rank's gradient, where their sum is the site's.
  float data_scale() const { return 1.0f / static_cast<float>(data_world()); }
};

// Turns a rank's failure, which ends the site, into INTERNAL: its own code would mean something else to the step loop.
absl::Status RankFailure(const absl::Status& status);

// One rank's part of a step, as sent to the others.
struct RankStep {
  double loss = 0;              // mean over its rows
  double sum_of_squares = 0;    // ‖g‖² of its own gradient, or of the site's as this rank sums it
  double compute_s = 0;         // without waiting for the others
  int64_t tokens = 0;           // trained on in it
  bool stop_requested = false;  // whether this rank was asked to stop
};

class RankSteps {
 public:
  explicit RankSteps(TrainerRanks ranks) : ranks_(std::move(ranks)) {}

  const TrainerRanks& ranks() const { return ranks_; }
  int rank() const { return ranks_.rank(); }
  int world() const { return ranks_.world(); }

  // Every rank's step, in their order. INTERNAL names the rank that has failed, and how.
  absl::StatusOr<std::vector<RankStep>> Share(RankStep mine) { return Share(mine, {}, {}); }
  // Also shares every rank's sums, back to back: `all` has world times as many as `sums`.
  absl::StatusOr<std::vector<RankStep>> Share(RankStep mine, std::span<const double> sums, std::span<double> all);

  // The ranks as the site reports them, as of the last Share.
  const core::RankProgress& progress() const { return progress_; }
  bool stop_requested() const { return stop_requested_; }  // whether any rank was asked to stop

 private:
  void Note(const std::vector<RankStep>& steps);

  const TrainerRanks ranks_;
  int64_t sent_bytes_ = 0;           // bytes sent until the last Share
  std::vector<double> late_step_s_;  // for each rank, the mean of recent steps
  core::RankProgress progress_;
  bool stop_requested_ = false;
};

}  // namespace causeway::worker
