#include "worker/parallel/stage_values.h"

#include <algorithm>

#include "core/bfloat16.h"

namespace causeway::worker {

using offload::Queue;

StageValues::StageValues(const Tensors& weights, const MutableTensors& gradients, ValueType type,
                         ComputeBackend* backend)
    : weights_(weights), gradients_(gradients), type_(type), backend_(backend), done_(backend->device().MakeEvent()) {
  int64_t next = 0;
  for (const std::span<float> gradient : gradients) {
    firsts_.push_back(next);
    next += std::ssize(gradient);
  }
  const int64_t parameters = firsts_.back();  // the last is the tied head's gradient
  parameters_ = arena_.Add("parameters", parameters * BytesOf(ValueType::kFloat32));
  computed_ = type == ValueType::kFloat32 ? parameters_ : arena_.Add("parameters", parameters * BytesOf(type));
  sums_ = arena_.Add("gradients", next * BytesOf(ValueType::kFloat32));
}

void StageValues::BringWeights() {
  float* const parameters = arena_.At<float>(parameters_);
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (weights_[i].empty()) continue;
    backend_->device().CopyToDevice(Queue::kCompute, parameters + firsts_[i], weights_[i].data(),
                                    weights_[i].size_bytes());
  }
  const int64_t count = firsts_.back();
  if (type_ == ValueType::kBfloat16) {
    backend_->Launch(Queue::kCompute, CopyKernel<float, Bfloat16>{parameters, arena_.At<Bfloat16>(computed_), count});
  }
  backend_->Launch(Queue::kCompute, FillKernel<float>{gradients(), count + std::ssize(gradients_.back()), 0});
}

absl::Status StageValues::ReadGradients(const std::vector<int>& which) {
  for (const int gradient : which) {
    const auto at = static_cast<size_t>(gradient);
    backend_->device().CopyToHost(Queue::kCompute, gradients_[at].data(), gradients() + firsts_[at],
                                  gradients_[at].size_bytes());
  }
  Await();
  return status();
}

void StageValues::Await() {
  backend_->device().Record(done_, Queue::kCompute);
  backend_->device().AwaitOnHost(done_);
}

void StageValues::Upload(std::span<const float> message, void* to) {
  if (message.empty()) return;
  if (type_ == ValueType::kFloat32) {
    backend_->device().CopyToDevice(Queue::kCompute, to, message.data(), message.size_bytes());
    return;
  }
  staged_.resize(message.size());
  std::ranges::transform(message, staged_.begin(), core::ToBfloat16);
  backend_->device().CopyToDevice(Queue::kCompute, to, staged_.data(), staged_.size() * sizeof(uint16_t));
}

void StageValues::Download(const void* from, std::span<float> message) {
  if (!message.empty() && type_ == ValueType::kFloat32) {
    backend_->device().CopyToHost(Queue::kCompute, message.data(), from, message.size_bytes());
  }
  Await();  // the staged values have arrived, too
  if (message.empty() || type_ == ValueType::kFloat32) return;
  staged_.resize(message.size());
  backend_->device().CopyToHost(Queue::kCompute, staged_.data(), from, staged_.size() * sizeof(uint16_t));
  Await();
  std::ranges::transform(staged_, message.begin(), core::FromBfloat16);
}

}  // namespace causeway::worker
