// θ of a rank whose weights are divided: reads and moves the rank's part of a range, and leaves the rest alone.
//
// Reads copy at once. One owner thread.
#pragma once

#include "replica/parameter_store.h"
#include "worker/parallel/partitioned_values.h"

namespace causeway::worker {

class PartitionStore final : public replica::ParameterStore {
 public:
  explicit PartitionStore(PartitionedValues& values) : values_(values) {}

  int64_t BeginRead(const replica::UnitRanges& ranges, std::span<float> staging) override;
  absl::Status AwaitRead(int64_t) override { return absl::OkStatus(); }

 private:
  absl::Status DoMove(const replica::UnitRanges& ranges, const replica::Movement& movement) override;

  PartitionedValues& values_;
};

}  // namespace causeway::worker
