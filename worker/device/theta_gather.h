// Copies a fragment's θ, whose tensors are scattered on the device, with one kernel. For the step thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "replica/parameter_store.h"
#include "worker/device/compute_backend.h"

namespace causeway::worker {

class ThetaGather {
 public:
  // The permanent place of a range's values on the device, and their number.
  struct Place {
    const float* values = nullptr;
    int64_t count = 0;
  };
  using PlaceOf = std::function<Place(const replica::UnitRange&)>;

  ThetaGather(ComputeBackend* backend, PlaceOf place_of) : backend_(backend), place_of_(std::move(place_of)) {}
  ~ThetaGather();

  // Queues the copy on kCompute, into `to` in padded layout, and then the event.
  absl::Status Queue(const replica::UnitRanges& ranges, float* to, offload::Device::Event taken);

 private:
  // The ranges' pieces, on the device.
  struct Table {
    void* pieces = nullptr;
    int64_t count = 0, blocks = 0;
  };
  absl::StatusOr<const Table*> TableOf(const replica::UnitRanges& ranges);

  ComputeBackend* const backend_;
  const PlaceOf place_of_;
  std::map<std::pair<int, int64_t>, Table> tables_;  // by first tensor and unit, which are unique to a fragment
};

}  // namespace causeway::worker
