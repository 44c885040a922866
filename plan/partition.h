// Weights, gradients and optimizer state divided over link levels: the bytes that a rank of a site holds and moves.
//
//   levels   pair of 2 ─► node of 4 pairs ─► site of 48 nodes        G_x: ranks of the group over which x is divided
//
//   holds            weights ÷ G_w + gradients ÷ G_g + optimizer ÷ G_o (+ weights ÷ G_s, a second copy)
//   a micro-batch    weights gathered in G_w, forward and backward; gradients reduce-scattered in G_g
//   a step           gradients from G_g to G_o; summed over groups of G_o; new weights from G_o to G_w
//
// An all-gather or a reduce-scatter of S bytes in groups of G ranks brings a rank S (G − 1) ÷ G. Counted `flat`, all of
// them cross the slowest level that the group spans, as the ZeRO++ paper counts (arXiv 2306.10209); hierarchical, level
// by level: S (o − 1) ÷ (o · g) where a level joins o groups of g ranks (arXiv 2501.04266). A micro-batch's and a
// step's bytes are never added before the number of micro-batches is known. ZeRO-1, 2, 3: arXiv 1910.02054. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/codec_id.h"
#include "core/link_levels.h"

namespace causeway::plan {

// Bytes of a parameter in each state.
struct ValueBytes {
  double weights = 2, gradients = 2, optimizer = 12;  // bfloat16, with float32 master weights and two moments

  static ValueBytes Float32() { return {4, 4, 8}; }
  static ValueBytes Bfloat16() { return {}; }
};

// The level over which each state is divided: an index of levels.site; kWhole: each rank has all of it.
inline constexpr int kWhole = -1;
struct PartitionStrategy {
  std::string name;
  int weights = kWhole, gradients = kWhole, optimizer = kWhole;
  int secondary = kWhole;  // a second copy of the weights for backward; kWhole: none
  bool quantized = false;  // int8 weights forward, int4 gradients, as ZeRO++

  friend bool operator==(const PartitionStrategy&, const PartitionStrategy&) = default;
};

struct LevelBytes {
  double micro_batch = 0, step = 0;  // bytes that a rank receives
};

struct PartitionPlan {
  PartitionStrategy strategy;
  double weights = 0, gradients = 0, optimizer = 0, secondary = 0;  // bytes that a rank holds
  std::vector<LevelBytes> flat, hierarchical;                       // by level, innermost first

  double memory_bytes() const { return weights + gradients + optimizer + secondary; }
  const std::vector<LevelBytes>& Counted(bool as_flat) const { return as_flat ? flat : hierarchical; }
  // The seconds that the levels' links take in a step of these micro-batches, one after the other, without latency.
  double LinkSeconds(const core::LinkLevels& levels, int micro_batches, bool as_flat = false) const;
};

struct PartitionInput {
  double parameters = 0;
  double gathered_once = 0;  // parameters that stay gathered from a micro-batch's forward to its backward
  ValueBytes bytes;
  core::LinkLevels levels;
};

// INVALID_ARGUMENT: states that are not nested (weights within gradients within the optimizer's), which the operations
// need; levels that do not exist.
absl::StatusOr<PartitionPlan> PlanPartition(const PartitionInput& input, const PartitionStrategy& strategy);

// The plans for data parallel, ZeRO-1, 2 and 3 and, if there are levels for them, ZeRO++ and one level for each state.
std::vector<PartitionStrategy> KnownStrategies(const core::LinkLevels& levels);

// The level of that name; "rank": kWhole, "site": the outermost. INVALID_ARGUMENT lists the names that exist.
absl::StatusOr<int> LevelOf(const core::LinkLevels& levels, const std::string& name);
std::string LevelName(const core::LinkLevels& levels, int level);

// Bytes that a site sends over the WAN for all parameters, in chunks of the codec.
double WanBytes(double parameters, core::CodecId codec);

}  // namespace causeway::plan
