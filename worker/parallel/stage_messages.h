// Messages of a pipeline's stages in transit between the host and a device.
//
// Values that the type can represent keep their bits in both directions. Nothing happens for an empty message. One
// owner thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "worker/device/compute_backend.h"

namespace causeway::worker {

class StageMessages {
 public:
  StageMessages(ValueType type, ComputeBackend* backend)
      : type_(type), backend_(backend), done_(backend->device().MakeEvent()) {}

  void Upload(std::span<const float> message, void* to);  // queued; the next one only after Await
  void Download(const void* from, std::span<float> message);
  void Await();  // all queued work

 private:
  const ValueType type_;
  ComputeBackend* const backend_;
  offload::Device::Event done_;
  std::vector<uint16_t> staged_;  // bfloat16 values
};

}  // namespace causeway::worker
