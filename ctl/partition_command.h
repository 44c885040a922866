// causewayctl plan partition: the bytes that ranks hold and move when a site's states are divided over its link levels.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "plan/partition.h"

namespace causeway::ctl {

// The WAN's part: bytes of a site and step, averaged over a round.
struct WanShare {
  double bytes_per_step = 0;
  std::string words;  // "int4, sync_every 100"
};

struct PartitionQuestion {
  plan::PartitionInput input;
  int micro_batches = 1;
  double memory_bytes = 0;  // of a rank; 0: any
  bool flat = false;        // counting
  WanShare wan;
};

// The table of plans, those that fit first.
std::string PartitionText(const PartitionQuestion& question, const std::vector<plan::PartitionPlan>& plans);
std::string PartitionJson(const PartitionQuestion& question, const std::vector<plan::PartitionPlan>& plans);

// By flags; prints. INVALID_ARGUMENT names the flag, the key of the levels' file, or the memory that is missing.
absl::Status RunPartitionCommand(bool json);

}  // namespace causeway::ctl
