#include "worker/parallel/stage_messages.h"

#include <algorithm>

#include "core/bfloat16.h"

namespace causeway::worker {

using offload::Queue;

void StageMessages::Await() {
  backend_->device().Record(done_, Queue::kCompute);
  backend_->device().AwaitOnHost(done_);
}

void StageMessages::Upload(std::span<const float> message, void* to) {
  if (message.empty()) return;
  if (type_ == ValueType::kFloat32) {
    backend_->device().CopyToDevice(Queue::kCompute, to, message.data(), message.size_bytes());
    return;
  }
  staged_.resize(message.size());
  std::ranges::transform(message, staged_.begin(), core::ToBfloat16);
  backend_->device().CopyToDevice(Queue::kCompute, to, staged_.data(), staged_.size() * sizeof(uint16_t));
}

void StageMessages::Download(const void* from, std::span<float> message) {
  if (message.empty()) return;
  if (type_ == ValueType::kFloat32) {
    backend_->device().CopyToHost(Queue::kCompute, message.data(), from, message.size_bytes());
    Await();
    return;
  }
  Await();  // the staged values have arrived
  staged_.resize(message.size());
  backend_->device().CopyToHost(Queue::kCompute, staged_.data(), from, staged_.size() * sizeof(uint16_t));
  Await();
  std::ranges::transform(staged_, message.begin(), core::FromBfloat16);
}

}  // namespace causeway::worker
