// The syncs' access to θ of a device's trainer, through the host.
//
//   on the device   BeginRead: θ ─► staging, before anything else changes it    Move: W or s ─► device ─► a kernel ─► θ
//                   or contributions encoded there (device_encoder.h)
//   on the host     AwaitRead: copied as the bus schedule lets it               Move: on the host, and its copy anew
//
// Moves give the same bits as those of a HostStore (core::MixAnchor, core::Rebase). One owner thread, except for
// AwaitRead.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "replica/parameter_store.h"
#include "replica/scheduled_reads.h"
#include "worker/device/device_encoder.h"
#include "worker/device/staged_copies.h"
#include "worker/optimizer/device_state.h"

namespace causeway::worker {

class DeviceStore final : public replica::ParameterStore {
 public:
  // `firsts`: where each tensor's values begin in the state; values that are not in the state are not read or moved.
  // State and backend outlive it. Without `encode` contributions are encoded on the host.
  DeviceStore(const core::Manifest& manifest, std::vector<int64_t> firsts, DeviceState* state, ComputeBackend* backend,
              const std::optional<DeviceEncoder::Options>& encode);
  ~DeviceStore() override;

  int64_t BeginRead(const replica::UnitRanges& ranges, std::span<float> staging) override;
  absl::Status AwaitRead(int64_t ticket) override;
  replica::ThetaEncoder* encoder() override { return encoder_.get(); }  // null where some of θ lies on the host

 private:
  // The values of a range on one side: their place in the flat parameters, and in an array of the ranges.
  struct Part {
    int64_t first = 0, count = 0, at = 0;
    bool on_device = false;
  };

  std::vector<Part> PartsOf(const replica::UnitRanges& ranges) const;
  absl::Status DoMove(const replica::UnitRanges& ranges, const replica::Movement& movement) override;
  absl::Status Upload(std::span<const float> values);
  // `of_ranges`: W or s on the device.
  void MoveOnDevice(const Part& part, const replica::Movement& movement, const float* of_ranges);
  void MoveOnHost(const Part& part, const replica::Movement& movement);

  const core::Manifest manifest_;
  const std::vector<int64_t> firsts_;
  DeviceState* const state_;
  ComputeBackend* const backend_;
  float* incoming_ = nullptr;  // W or s on the device
  int64_t incoming_count_ = 0;
  absl::Status read_;
  std::unique_ptr<ThetaGather> gather_;
  std::unique_ptr<DeviceEncoder> encoder_;
  std::unique_ptr<replica::ScheduledReads> reads_;  // of the values on the host; null: there are none
};

}  // namespace causeway::worker
