// The all-reduce of 1-bit Adam: averages the ranks' momenta at one bit a value, with error feedback on both legs.
//
//   rank i   c = m_i + δ_i ─► sign(c) · ‖c‖₂/√n ──to the owner of each range──► owner r   c̄ = Σ/R + δ̄_r
//            δ_i ← c − that                                                               sign(c̄) · ‖c̄‖₂/√n ─► all
//            m ← what the owners send                                                     δ̄_r ← c̄ − that
//
// The flat values are cut into buckets of 25 MB from the end, as backward makes them final; each bucket into R ranges,
// one for each rank to own; each range into pieces at the borders of tensors, and every piece has a scale of its own on
// both legs. m, δ_i are whole on each rank, δ̄_r has its ranges alone. Sums are float32 in the order of the ranks, times
// 1/R. Where v is 0 (no gradient had come when it was frozen) m, δ and δ̄ stay 0. With one rank nothing is encoded.
//
// One owner thread. INTERNAL names the rank that has failed, and how. Source: 1-bit Adam (arXiv 2102.02888), algorithm
// 1 and section 6 (compressed all-reduce); scales by tensor as in its published implementation.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "core/manifest.h"
#include "offload/host_array.h"
#include "worker/ranks/rank_steps.h"

namespace causeway::worker {

class MomentumExchange {
 public:
  // The exchange's part of a checkpoint: δ of each rank, and δ̄ of all ranges. Empty: nothing has been exchanged yet.
  struct State {
    std::vector<std::vector<float>> residuals;
    std::vector<float> owned;
  };

  // `second_moment`: v of all values, frozen; it outlives this.
  MomentumExchange(const core::Manifest& manifest, TrainerRanks ranks, std::span<const float> second_moment,
                   int64_t bucket_bytes = GradientBuckets::kBytes);

  // Begins a step with this rank's momenta, none of which is ready yet; they stay until Finish.
  void Begin(std::span<float> momentum);
  // The values from `first` on are ready: sends the complete buckets.
  absl::Status Send(int64_t first);
  // Returns when all are the average over the ranks. DATA_LOSS: a value is not finite, or beyond 2^100.
  absl::Status Finish();

  // Gathers the others' residuals at rank 0; every rank calls it. Only rank 0 gets a state.
  absl::StatusOr<State> Gather();
  // In a world of another size each rank continues with the mean of the old δ, and owns other ranges of δ̄.
  void Restore(const State& state);

  // Whether there is something for a checkpoint. A single rank has it only until its first step.
  bool has_state() const { return ranks_.world() > 1 || carries_; }
  std::span<const float> residual() const { return residual_.Values<const float>(); }
  std::span<const float> owned_residual() const { return owned_; }  // δ̄ of this rank's ranges, in the order of buckets

 private:
  struct Piece {
    int64_t first = 0, count = 0;
    int64_t scales = 0, codes = 0;  // where they begin in the range's bytes
  };
  struct Range {
    int64_t first = 0, count = 0;
    std::vector<Piece> pieces;
  };
  struct Bucket {
    int64_t first = 0;
    int64_t range_bytes = 0;  // size of the longest range; the others are padded
    int64_t owned = 0;        // where this rank's part begins in owned_
    std::vector<Range> ranges;
    std::vector<std::byte> encoded, received, average, averages;
    Collectives::Ticket ticket = 0;
  };

  Range MakeRange(const std::vector<int64_t>& borders, int64_t first, int64_t end, int64_t& bytes) const;
  // Encodes `values`, and their residuals' next ones, which both begin with the range.
  absl::Status Encode(const Range& range, const float* values, float* residual, std::byte* bytes) const;
  void Decode(const Range& range, const std::byte* bytes, bool add, float* values) const;
  absl::Status Average(Bucket& bucket);
  void MaskRange(const Range& range, float* values) const;
  absl::Status Await(Collectives::Ticket ticket);
  int64_t own_first(const Bucket& bucket) const { return bucket.ranges[ranks_.rank()].first; }

  const TrainerRanks ranks_;
  const std::span<const float> second_moment_;
  std::vector<Bucket> buckets_;  // ordered from the end of the values to their beginning
  size_t sent_ = 0;              // how many buckets of this step
  std::span<float> momentum_;
  offload::HostArray residual_;
  std::vector<float> owned_;
  bool carries_ = false;    // a single rank still has values in residual_ that an earlier world has not sent
  std::vector<float> sum_;  // the sum of a range, while it is averaged
};

}  // namespace causeway::worker
