#include "worker/gpu/device_store.h"

#include <algorithm>

#include "core/check.h"
#include "core/layout.h"

namespace causeway::worker {

using offload::Queue;

DeviceStore::~DeviceStore() {
  if (incoming_ != nullptr) backend_->device().Free(incoming_);
}

std::vector<DeviceStore::Part> DeviceStore::PartsOf(const replica::UnitRanges& ranges) const {
  std::vector<Part> parts;
  int64_t at = 0;
  for (const replica::UnitRange& range : ranges) {
    const int64_t first = range.first * core::kUnitValues, padded = range.count * core::kUnitValues;
    const int64_t count = std::min(padded, manifest_[range.tensor].NumValues() - first);
    parts.push_back({.first = optimizer_->First(range.tensor) + first, .count = count, .at = at});
    at += padded;
  }
  return parts;
}

int64_t DeviceStore::BeginRead(const replica::UnitRanges& ranges, std::span<float> staging) {
  for (const Part& part : PartsOf(ranges)) {
    backend_->device().CopyToHost(Queue::kCompute, staging.data() + part.at, optimizer_->parameters() + part.first,
                                  static_cast<size_t>(part.count) * sizeof(float));
  }
  read_ = optimizer_->Await();
  return 0;
}

absl::Status DeviceStore::AwaitRead(int64_t) { return read_; }

absl::Status DeviceStore::DoMove(const replica::UnitRanges& ranges, const replica::Movement& movement) {
  const bool mixes = movement.kind == replica::Movement::Kind::kMix;
  if (mixes && movement.factor == 1) return absl::OkStatus();  // as core::MixAnchor has it
  const auto count = std::ssize(movement.values);
  if (count > incoming_count_) {
    if (incoming_ != nullptr) backend_->device().Free(incoming_);
    incoming_ = nullptr;
    ASSIGN_OR_RETURN(void* const memory, backend_->device().Allocate(movement.values.size_bytes()));
    incoming_ = static_cast<float*>(memory);
    incoming_count_ = count;
  }
  RETURN_IF_ERROR(optimizer_->Write(movement.values, incoming_));
  for (const Part& part : PartsOf(ranges)) {
    float* const parameters = optimizer_->parameters() + part.first;
    const float* const values = incoming_ + part.at;
    if (!mixes) {
      backend_->Launch(Queue::kCompute, RebaseKernel{values, parameters, part.count, movement.factor});
    } else if (movement.factor == 0) {
      backend_->Launch(Queue::kCompute, CopyKernel<float, float>{values, parameters, part.count});
    } else {
      backend_->Launch(Queue::kCompute, MixKernel{values, parameters, part.count, movement.factor});
    }
    optimizer_->Changed(part.first, part.count);
  }
  return backend_->device().status();
}

}  // namespace causeway::worker
