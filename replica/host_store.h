// θ as float32 in host memory, one span for each tensor of the manifest.
//
// AwaitRead's thread copies the ranges of BeginRead piece by piece while the next step computes; the bus schedule keeps
// θ unchanged until then. Without a schedule, BeginRead copies at once.
#pragma once

#include "offload/bus_schedule.h"
#include "replica/parameter_store.h"
#include "replica/scheduled_reads.h"

namespace causeway::replica {

// Applies `movement` to parameters in host memory; `values` are as many of its values.
void MoveValues(const Movement& movement, std::span<const float> values, std::span<float> parameters);

class HostStore : public ParameterStore {
 public:
  // The spans have no padding. They and `bus`, which may be null, outlive the store.
  HostStore(std::vector<std::span<float>> tensors, offload::BusSchedule* bus);

  int64_t BeginRead(const UnitRanges& ranges, std::span<float> staging) override;
  absl::Status AwaitRead(int64_t ticket) override;

 protected:
  absl::Status DoMove(const UnitRanges& ranges, const Movement& movement) override;

 private:
  std::span<float> Local(const UnitRange& range) const;

  const std::vector<std::span<float>> tensors_;
  std::vector<int64_t> firsts_;  // first value of each tensor, counted over all tensors
  offload::BusSchedule* const bus_;
  ScheduledReads reads_;
};

}  // namespace causeway::replica
