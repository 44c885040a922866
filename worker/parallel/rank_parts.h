// A rank's tensors, optimizer and stages, made together for the host (host_parts.h) or a device (device_rank.h).
#pragma once

#include <memory>

#include "worker/optimizer/inner_optimizer.h"
#include "worker/parallel/model_stages.h"
#include "worker/parallel/sharded_tensors.h"

namespace causeway::worker {

struct RankParts {
  std::unique_ptr<ShardedTensors> tensors;  // θ has no values yet
  std::unique_ptr<InnerOptimizer> optimizer;
  std::unique_ptr<ModelStages> stages;
};

}  // namespace causeway::worker
