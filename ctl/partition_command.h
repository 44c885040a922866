// causewayctl plan partition: the bytes that ranks hold and move when a site's states are divided over its link levels.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "plan/partition.h"

namespace causeway::ctl {

// The bytes that a site sends over the WAN per step, averaged over a round.
struct WanShare {
  double bytes_per_step = 0;
  std::string words;  // "int4, sync_every 100"
};

struct PartitionQuestion {
  plan::PartitionInput input;
  int micro_batches = 1;
  double memory_bytes = 0;  // limit for a rank; 0: none
  bool flat = false;        // counts flat (plan/partition.h)
  WanShare wan;
};

// The table of plans, those that fit first.
std::string PartitionText(const PartitionQuestion& question, const std::vector<plan::PartitionPlan>& plans);
std::string PartitionJson(const PartitionQuestion& question, const std::vector<plan::PartitionPlan>& plans);

// Reads flags, prints the plans. INVALID_ARGUMENT names the flag, the key of the levels' file, or the missing memory.
absl::Status RunPartitionCommand(bool json);

}  // namespace causeway::ctl
