// θ in device memory, as syncs read and move it: through the host.
//
//   BeginRead   θ ─► staging, before anything else changes it          Move   W or s ─► device ─► a kernel ─► θ
//
// Moves have the bits of a HostStore's (core::MixAnchor, core::Rebase). One owner thread but for AwaitRead.
#pragma once

#include "replica/parameter_store.h"
#include "worker/gpu/device_optimizer.h"

namespace causeway::worker {

class DeviceStore final : public replica::ParameterStore {
 public:
  // Both outlive it.
  DeviceStore(const core::Manifest& manifest, DeviceOptimizer* optimizer, ComputeBackend* backend)
      : manifest_(manifest), optimizer_(optimizer), backend_(backend) {}
  ~DeviceStore() override;

  int64_t BeginRead(const replica::UnitRanges& ranges, std::span<float> staging) override;
  absl::Status AwaitRead(int64_t ticket) override;

 private:
  // A range's values: where they lie in the flat parameters, and in an array of the ranges.
  struct Part {
    int64_t first = 0, count = 0, at = 0;
  };

  std::vector<Part> PartsOf(const replica::UnitRanges& ranges) const;
  absl::Status DoMove(const replica::UnitRanges& ranges, const replica::Movement& movement) override;

  const core::Manifest manifest_;
  DeviceOptimizer* const optimizer_;
  ComputeBackend* const backend_;
  float* incoming_ = nullptr;  // W or s on the device
  int64_t incoming_count_ = 0;
  absl::Status read_;
};

}  // namespace causeway::worker
