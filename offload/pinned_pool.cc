#include "offload/pinned_pool.h"

#include "core/check.h"

namespace causeway::offload {

PinnedPool::~PinnedPool() {
  for (const auto& [bytes, memory] : idle_) device_->Unpin(memory.data());
}

absl::StatusOr<PinnedPool::Array> PinnedPool::Take(size_t bytes) {
  Array array;
  if (bytes == 0) return array;
  if (const auto large_enough = idle_.lower_bound(bytes); large_enough != idle_.end()) {
    array.memory_ = std::move(large_enough->second);
    idle_.erase(large_enough);
  } else {
    array.memory_ = HostArray(bytes);
    RETURN_IF_ERROR(device_->Pin(array.memory_.data(), bytes));
  }
  array.bytes_ = bytes;
  array.pool_ = this;
  return array;
}

int64_t PinnedPool::idle_bytes() const {
  int64_t total = 0;
  for (const auto& [bytes, memory] : idle_) total += static_cast<int64_t>(bytes);
  return total;
}

}  // namespace causeway::offload
