// Bytes at each link level of a site in a step, beside the prediction.
//
// One owner thread.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "core/link_levels.h"
#include "core/membership.h"
#include "core/progress.h"
#include "plan/partition.h"
#include "worker/parallel/level_groups.h"

namespace causeway::worker {

class LevelMeter {
 public:
  LevelMeter(const core::LinkLevels& levels, const plan::PartitionPlan& plan, int64_t micro_batches)
      : sent_(levels.site.size()) {
    for (size_t l = 0; l < levels.site.size(); ++l) {
      const plan::LevelBytes& bytes = plan.hierarchical[l];
      traffic_.push_back({levels.site[l].name, bytes.micro_batch * static_cast<double>(micro_batches) + bytes.step, 0});
    }
  }

  void EndStep(const LevelGroups& groups) {
    for (size_t l = 0; l < traffic_.size(); ++l) {
      const int64_t sent = groups.sent_bytes(static_cast<int>(l));
      traffic_[l].measured = static_cast<double>(sent - std::exchange(sent_[l], sent));
    }
  }
  const std::vector<core::LevelTraffic>& last_step() const { return traffic_; }

 private:
  std::vector<core::LevelTraffic> traffic_;
  std::vector<int64_t> sent_;  // so far
};

}  // namespace causeway::worker
