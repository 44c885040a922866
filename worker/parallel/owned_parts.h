// The optimizer's part of a model on one rank: the values that it updates, as separate tensors.
//
//   group 0: |q_proj from value 512 on, 1024 of them|k_proj …|padding|   group 1: …      back to back
//
// Pure, except for the views.
#pragma once

#include <cstdint>
#include <vector>

#include "core/manifest.h"
#include "worker/parallel/partition_layout.h"

namespace causeway::worker {

struct OwnedParts {
  core::Manifest manifest;              // of parts: names of their tensors, shapes of as many dimensions
  std::vector<TensorPart> parts;        // of each
  std::vector<int64_t> firsts() const;  // as InnerOptimizer::HoldParts takes them
};

OwnedParts OwnedPartsOf(const PartitionLayout& layout, const core::Manifest& manifest, int level, int rank);

}  // namespace causeway::worker
